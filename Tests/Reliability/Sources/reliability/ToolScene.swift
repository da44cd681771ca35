import FoundationEssentials
import Glibc
import ResponseStore

/// Runs the commands of `urlcache` that read all entries of a directory: their memory is bounded, and SIGINT ends them.
struct ToolScene {
  /// The maximum of a command's own memory, without the pages of mapped files.
  static let maximumByteCount = 64 << 20
  /// The maximum time from SIGINT until a command has ended.
  static let maximumSeconds = 1.0

  let setting: RunConfiguration
  let directory: String
  private var storePath: String { directory + "/store" }
  private var harPath: String { directory + "/export.har" }

  /// The child process that fills the directory.
  static func fill(_ directory: String, count: Int) throws(StoreError) {
    let store = try BadInput.open(directory, max(64 << 20, count * 1200), clock: Tick())
    for number in 0..<count {
      store.store(
        BadInput.response(
          "http://h\(number % 100).example/item/\(number)?page=\(number % 7)", body: BadInput.bytes(64, seed: 1),
          at: .now))
    }
    try store.flush()
    guard store.entryCount == count else { fail("\(store.entryCount) of \(count) responses are stored") }
    store.close()
  }

  func run(entryCount: Int) -> Bool {
    makeDirectory(directory)
    defer { removeTree(directory) }
    let (end, output) = filled(entryCount)
    guard end == .exited(0) else {
      setting.report("input: urlcache", "FAILED, \(end): \(output.suffix(500))")
      return false
    }
    var failures: [String] = []
    var texts: [String] = []
    for arguments in commands {
      let (end, seconds, byteCount) = measure(arguments)
      let name = name(arguments)
      texts.append("\(name) \((seconds * 10).rounded() / 10) s, \(byteCount >> 20) MiB")
      if end != .exited(0) { failures.append("\(name) \(end)") }
      if byteCount > Self.maximumByteCount { failures.append("\(name) takes \(byteCount >> 20) MiB") }
    }
    var longest = 0.0
    // A background job of a script ignores SIGINT, and a command that inherits this would not end.
    signal(SIGINT, SIG_DFL)
    for arguments in interruptedCommands {
      unlink(harPath)
      let child = Child.start(arguments, executable: setting.tool, outputPath: directory + "/output")
      // It is reading when it has opened the directory. A command that is done earlier is not interrupted.
      usleep(entryCount >= 500_000 ? 300_000 : 20_000)
      let began = now()
      child.kill(SIGINT)
      let end = child.wait(seconds: 20)
      longest = max(longest, now() - began)
      let isRight = end == .signaled(SIGINT) || end == .exited(1) || end == .exited(0)
      if !isRight { failures.append("\(name(arguments)), interrupted, \(end)") }
      if end != .exited(0), hasExport { failures.append("an interrupted export left a file") }
    }
    if longest > Self.maximumSeconds { failures.append("a command took \(longest) s to end") }
    setting.report(
      "input: urlcache",
      "\(entryCount) entries, time and own memory: \(texts.joined(separator: "; ")); interrupted commands end within "
        + "\(Int(longest * 1000)) ms: " + (failures.isEmpty ? "OK" : "FAILED: \(failures.joined(separator: ", "))"))
    return failures.isEmpty
  }

  /// Whether there is a file of an export, also an incomplete one.
  private var hasExport: Bool {
    let names = try? FileManager.default.contentsOfDirectory(atPath: directory)
    return names?.contains { $0.hasPrefix("export.har") } ?? true
  }

  private func filled(_ count: Int) -> (Child.End, String) {
    let child = Child.start(["fill-entries", storePath, "\(count)"], outputPath: directory + "/log")
    return (child.wait(seconds: 600), child.output)
  }

  private var commands: [[String]] {
    [
      ["list", storePath], ["list", storePath, "--json"], ["list", storePath, "--sort", "size", "--limit", "10"],
      ["stats", storePath], ["stats", storePath, "--details"], ["export", storePath, "--har", harPath],
      ["verify", storePath], ["show", storePath, "http://h5.example/item/5?page=5"],
      ["purge", storePath, "--host", "h7.example", "--dry-run"], ["purge", storePath, "--all", "--dry-run"],
      ["purge", storePath, "--host", "h7.example", "--soft"], ["purges", storePath],
      ["top", storePath, "--interval", "1", "--count", "1"], ["log", storePath],
    ]
  }

  private var interruptedCommands: [[String]] {
    [
      ["list", storePath, "--json"], ["list", storePath, "--sort", "url"], ["stats", storePath, "--details"],
      ["export", storePath, "--har", harPath], ["purge", storePath, "--all", "--dry-run"],
      ["verify", storePath], ["top", storePath], ["stats", storePath, "--watch"], ["log", storePath, "--follow"],
    ]
  }

  private func name(_ arguments: [String]) -> String {
    arguments.filter { !$0.hasPrefix("/") && !$0.hasPrefix("http:") }.joined(separator: " ")
  }

  /// Runs a command, and samples its memory.
  private func measure(_ arguments: [String]) -> (Child.End, seconds: Double, byteCount: Int) {
    let began = now()
    let child = Child.start(arguments, executable: setting.tool, outputPath: directory + "/output")
    var status: Int32 = 0
    var byteCount = 0
    while waitpid(child.processID, &status, WNOHANG) == 0 {
      byteCount = max(byteCount, ownMemory(of: child.processID))
      if now() - began > 300 { child.kill(SIGKILL) }
      usleep(2000)
    }
    let end: Child.End = status & 0x7f == 0 ? .exited(status >> 8 & 0xff) : .signaled(status & 0x7f)
    return (end, now() - began, byteCount)
  }

  private func ownMemory(of processID: pid_t) -> Int {
    let text = FileManager.default.contents(atPath: "/proc/\(processID)/status").map {
      String(decoding: $0, as: UTF8.self)
    }
    let line = text?.split(separator: "\n").first { $0.hasPrefix("RssAnon:") }
    return (line?.split { $0 == " " || $0 == "\t" }.dropFirst().first.flatMap { Int($0) } ?? 0) << 10
  }
}
