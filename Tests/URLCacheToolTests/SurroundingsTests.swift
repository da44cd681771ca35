import Foundation
import Glibc
import LMDBURLCache
import Testing

@Suite("Unusual surroundings of the tool", .timeLimit(.minutes(2)))
struct SurroundingsTests {
  private static let url = "http://a.example/page"
  private static let isRoot = geteuid() == 0

  /// Runs a shell script, in which `$TOOL` is the path of the tool, and returns its output and errors together.
  private static func shell(_ script: String, in tool: Tool) throws -> String {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/bin/bash")
    process.arguments = ["-c", "exec 2>&1\n" + script]
    process.environment = [
      "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": tool.root.path, "TZ": "UTC", "TOOL": Tool.executable.path,
      "ROOT": tool.root.path,
    ]
    process.currentDirectoryURL = tool.root
    process.standardInput = FileHandle.nullDevice
    let output = Pipe()
    process.standardOutput = output
    try process.run()
    let text = String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
    process.waitUntilExit()
    return text
  }

  /// Whether this process may mount file systems.
  private static let canMount: Bool = {
    let text = try? shell("unshare --mount mount --bind / /mnt && echo yes", in: Tool())
    return text == "yes\n"
  }()

  @discardableResult
  private func makeCache(_ tool: Tool) throws -> String {
    try tool.makeCache([Tool.Stored(url: Self.url), Tool.Stored(url: Self.url + "/2", status: 404)])
  }

  @Test("Without /proc the tool ends with a line, and no signal", .enabled(if: canMount, "mounting is not permitted"))
  func noProc() throws {
    let tool = try Tool()
    let text = try Self.shell(
      """
      unshare --mount --propagation private bash -c 'umount -l /proc
      for number in 1 2 3 4 5 6 7 8; do "$TOOL" list "$ROOT/cache"; echo $?; done'
      """, in: tool)
    let line =
      "urlcache: /proc/self/cmdline, which the Swift runtime needs, cannot be opened: No such file or directory.\n1\n"
    #expect(text == String(repeating: line, count: 8))
  }

  @Test("With too few descriptors the tool ends with a line, and does not hang")
  func fewDescriptors() throws {
    let text = try Self.shell("ulimit -n 12; timeout -s KILL 60 \"$TOOL\" --version; echo $?", in: Tool())
    #expect(text == "urlcache: The limit of open files is 12, and the tool needs 32.\n1\n")
  }

  /// Tries limits in KiB. At the lowest ones, the dynamic loader or the Swift runtime fails before the tool begins.
  @Test("With too little address space for threads the tool ends with a line, and does not hang")
  func fewThreads() throws {
    let text = try Self.shell(
      """
      for size in $(seq 100000 4000 240000); do
        output=$(ulimit -v $size; timeout -s KILL 20 "$TOOL" --version 2>&1); echo "$? $(tail -n 1 <<< "$output")"
      done
      """, in: Tool())
    let outcomes = text.split(separator: "\n").map(String.init)
    func isRefusal(_ outcome: String) -> Bool {
      outcome.hasPrefix("1 urlcache: The system cannot start another thread: ")
    }
    #expect(!outcomes.contains { $0.hasPrefix("137 ") }, "\(outcomes)")
    let begun = outcomes.drop { !isRefusal($0) }
    #expect(!begun.isEmpty, "\(outcomes)")
    #expect(begun.allSatisfy { isRefusal($0) || $0.hasPrefix("0 urlcache ") }, "\(outcomes)")
  }

  @Test("A missing or incomplete lock file does not prevent get, and keeps the capacity", arguments: [true, false])
  func lockFile(isMissing: Bool) throws {
    let tool = try Tool()
    try makeCache(tool)
    let text = try Self.shell(
      """
      capacity() { "$TOOL" stats cache --prometheus | grep ^urlcache_capacity; }
      before=$(capacity); \(isMissing ? "rm cache/users.lock" : ": > cache/users.lock")
      "$TOOL" stats cache > /dev/null; echo $?
      "$TOOL" get --directory cache --policy only-cache \(Self.url) 2> errors; echo " $?"
      test "$before" = "$(capacity)" && test -n "$before"; echo $?
      """, in: tool)
    #expect(text.contains("Open a cache on the directory: it makes the file.") && text.hasSuffix("\n1\nbody 0\n0\n"))
  }

  @Test("A purge at the limit of file sizes names the limit, and the store goes on")
  func fileSizeLimit() throws {
    let tool = try Tool()
    try makeCache(tool)
    let text = try Self.shell(
      """
      for command in "purge cache --all" "purge cache --status 404" "purge cache --url \(Self.url)"; do
        (ulimit -f 0; exec "$TOOL" $command); echo $?
      done
      (ulimit -f 0; exec "$TOOL" list cache --json) | grep -c '"url"'
      """, in: tool)
    let lines = text.split(separator: "\n").map(String.init)
    try #require(lines.count == 7, "\(lines)")
    for index in [0, 2, 4] {
      #expect(lines[index].contains("the removal log needs") && lines[index].contains("(ulimit -f"), "\(lines[index])")
      #expect(lines[index + 1] == "1")
    }
    #expect(lines[6] == "2")
  }

  @Test("A directory whose name is not UTF-8 works, and is shown with a replacement for the bytes")
  func otherEncoding() throws {
    let tool = try Tool()
    try makeCache(tool)
    let text = try Self.shell(
      #"""
      name=$'caf\xe9'; mv cache "$name"
      "$TOOL" stats "$name" | head -2
      "$TOOL" list "$name" --json | head -2
      "$TOOL" stats "$name" --prometheus | grep ^urlcache_entries
      "$TOOL" get --directory="$name" --policy only-cache \#(Self.url) 2> errors; echo
      "$TOOL" purge "$name" --status 404
      "$TOOL" stats $'caf\xe8'
      "$TOOL" export "$name" --har $'x\xe9'
      ls
      """#, in: tool)
    #expect(
      text == """
        Directory  caf\u{fffd}
        Responses  2
        {
          "directory": "caf\u{fffd}",
        urlcache_entries{directory="caf\u{fffd}"} 2
        body
        Removed responses with status 404: 1 response (4 B). 1 response left.
        urlcache: The argument 'caf\u{fffd}' is neither UTF-8 nor the path of a directory.
        urlcache: The argument 'x\u{fffd}' is neither UTF-8 nor the path of a directory.
        caf\u{fffd}
        errors

        """)
  }

  @Test(
    "The commands that change nothing work on a read-only file system, and the others say why they do not",
    .enabled(if: canMount, "mounting is not permitted"))
  func readOnly() throws {
    let tool = try Tool()
    try makeCache(tool)
    func run(_ arguments: String) throws -> String {
      try Self.shell(
        """
        mkdir -p mounted
        unshare --mount --propagation private bash -c 'mount --bind cache mounted &&
        mount -o remount,bind,ro mounted && "$TOOL" $0; echo $?' '\(arguments)'
        """, in: tool)
    }
    let before = try Self.shell("md5sum cache/*", in: tool)
    for command in UnusualDirectoryTests.commands {
      let text = try run(([command[0], "mounted"] + command.dropFirst()).joined(separator: " "))
      #expect(text.hasSuffix("0\n") && !text.contains("LMDBURLCache:"), "\(command): \(text)")
    }
    #expect(try run("list mounted --status 404").hasSuffix("\(Self.url)/2\n0\n"))
    #expect(try run("cat mounted \(Self.url)") == "body0\n")
    #expect(try run("explain mounted \(Self.url)").contains("1 variant"))
    let refusal = "it is on a read-only file system. Use a mount that can be written.\n1\n"
    for command in ["purge mounted --all", "purge mounted --status 404", "purge mounted --url \(Self.url) --soft"] {
      #expect(try run(command).hasSuffix(refusal), "\(command)")
    }
    for command in ["top mounted", "log mounted --follow"] {
      let text = try run(command)
      #expect(text.contains("the file system is read-only, ") && text.hasSuffix("\n1\n"), "\(command)")
    }
    #expect(try Self.shell("md5sum cache/*", in: tool) == before)
    // LMDB cannot protect the snapshot of a process that may not write to the lock file.
    let open = try LMDBURLCache(
      directory: tool.root.appendingPathComponent("cache"), memoryCapacity: 0, diskCapacity: 20 << 20)
    #expect(try run("list mounted").contains("a read-only file system, and other processes use it."))
    withExtendedLifetime(open) {}
  }

  @Test("With --as-owner root works on another user's directory as that user", .enabled(if: isRoot, "needs root"))
  func owner() throws {
    let tool = try Tool()
    try makeCache(tool)
    let text = try Self.shell(
      """
      chmod 755 .; chown -R 65534 cache
      "$TOOL" stats cache; echo $?
      "$TOOL" list cache --as-owner --status 404 | tail -1
      "$TOOL" purge cache --as-owner --status 404; echo $?
      (timeout -s KILL 1 "$TOOL" log cache --follow --as-owner; true) 2> /dev/null
      "$TOOL" verify cache --as-owner
      find cache ! -user 65534
      "$TOOL" export cache --as-owner --har "$ROOT/har"
      "$TOOL" purge --fleet unix:///none --all --as-owner
      """, in: tool)
    let lines = text.split(separator: "\n").map(String.init)
    try #require(lines.count == 9, "\(lines)")
    #expect(lines[0].hasPrefix("urlcache stats: ") && lines[0].contains("belongs to another user"))
    #expect(lines[0].hasSuffix(" As root, --as-owner opens it."))
    #expect(lines[1] == "1")
    #expect(lines[2].hasSuffix("404  -     \(Self.url)/2"))
    #expect(lines[3] == "Removed responses with status 404: 1 response (4 B). 1 response left.")
    #expect(lines[4] == "0")
    #expect(lines[5] == "OK: 1 response, 4 B of bodies.")
    // The user may not write to root's folder.
    #expect(lines[6].hasSuffix("har cannot be written: Permission denied."))
    #expect(lines[7] == "urlcache purge: --as-owner needs a directory")
  }
}
