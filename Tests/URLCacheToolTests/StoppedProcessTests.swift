import Foundation
import Glibc
import LMDB
import Testing

/// Tests that directory commands and purges do not depend on a suspended process, or one that has all reader slots.
@Suite("Commands on a directory that a suspended or busy process uses")
struct StoppedProcessTests {
  private static let responses = [
    Tool.Stored(url: "http://a.example/1"), Tool.Stored(url: "http://a.example/2"),
    Tool.Stored(url: "http://b.example/"),
  ]

  /// Synchronizes two processes over named pipes.
  ///
  /// The child sends its process ID when it is ready; the test tells the child when it is done.
  private struct Meeting: Codable, Sendable {
    let directory: String

    init(directory: String) {
      self.directory = directory
      for name in [ready, done] { mkfifo(name, 0o600) }
    }

    private var ready: String { directory + ".ready" }
    private var done: String { directory + ".done" }

    func isReady() {
      var processID = getpid()
      let descriptor = open(ready, O_WRONLY)
      write(descriptor, &processID, MemoryLayout.size(ofValue: processID))
      close(descriptor)
    }

    func waitUntilDone() { close(open(done, O_RDONLY)) }
    func isDone() { close(open(done, O_WRONLY)) }

    func waitUntilReady() -> pid_t {
      var processID: pid_t = 0
      let descriptor = open(ready, O_RDONLY)
      read(descriptor, &processID, MemoryLayout.size(ofValue: processID))
      close(descriptor)
      return processID
    }

    func environment() throws(LMDBError) -> LMDBEnvironment {
      var options = LMDBEnvironment.Options(mapByteCount: 20 << 20)
      options.maximumReaders = nil
      return try LMDBEnvironment.open(directory: directory + "/data-1", options: options)
    }
  }

  /// Runs `body` on a thread that may block and returns the description of the error that it throws, or nil.
  private func onThread(_ body: @escaping @Sendable () throws -> Void) async -> String? {
    await withCheckedContinuation { continuation in
      Thread {
        do {
          try body()
          continuation.resume(returning: nil)
        } catch {
          continuation.resume(returning: "\(error)")
        }
      }.start()
    }
  }

  private struct Finding: Error {
    let text: String
  }

  private static func expect(_ isTrue: Bool, _ text: @autoclosure () -> String) throws {
    if !isTrue { throw Finding(text: text()) }
  }

  @Test("stats, list, verify and purge do not wait for a process that is suspended in a write transaction")
  func stopped() async throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses)
    let meeting = Meeting(directory: directory)
    let root = tool.root
    async let parent = onThread {
      let tool = Tool(root: root)
      let processID = meeting.waitUntilReady()
      waitUntil { Self.isStopped(processID) || kill(processID, 0) != 0 }
      // Resume the process after a minute, so that a command that waits for it ends.
      let end = DispatchSemaphore(value: 0)
      Thread {
        _ = end.wait(timeout: .now() + 60)
        kill(processID, SIGCONT)
      }.start()
      defer { end.signal() }
      let stats = try tool.run("stats", directory, "--json").json()
      try Self.expect(stats["entryCount"] as? Int == 3, "\(stats)")
      let list = try tool.run("list", directory)
      try Self.expect(list.status == 0 && list.output.contains("http://b.example/"), list.output + list.errors)
      let purge = try tool.run("purge", directory, "--host", "a.example", "--json").json()
      try Self.expect(purge["removedCount"] as? Int == 2 && purge["keptCount"] as? Int == 1, "\(purge)")
      let verify = try tool.run("verify", directory)
      try Self.expect(verify.status == 0, verify.output + verify.errors)
      let left = try tool.run("list", directory)
      try Self.expect(!left.output.contains("a.example"), left.output)
      try Self.expect(Self.isStopped(processID), "the process was resumed")
    }
    await #expect(processExitsWith: .success) { [meeting = meeting as Meeting] in
      try meeting.environment().write { (_) throws(LMDBError) in
        meeting.isReady()
        raise(SIGSTOP)
      }
    }
    #expect(await parent == nil)
    #expect(try tool.urls(in: directory) == ["http://b.example/"])
  }

  @Test("A purge takes effect although another process has all reader slots")
  func noSlots() async throws {
    let tool = try Tool()
    let directory = try tool.makeCache(Self.responses, capacity: 1 << 20)
    let meeting = Meeting(directory: directory)
    let root = tool.root
    async let parent = onThread {
      let tool = Tool(root: root)
      _ = meeting.waitUntilReady()
      defer { meeting.isDone() }
      let purge = try tool.run("purge", directory, "--host", "a.example", "--json")
      let json = try purge.json()
      try Self.expect(purge.status == 0 && json["removedCount"] is NSNull, purge.output + purge.errors)
      let stats = try tool.run("stats", directory)
      try Self.expect(stats.status == 1 && stats.errors.contains("reader slot"), stats.output + stats.errors)
    }
    await #expect(processExitsWith: .success) { [meeting = meeting as Meeting] in
      // Register as a user of the directory, as a cache does.
      let users = open(meeting.directory + "/users.lock", O_RDWR | O_CLOEXEC)
      guard flock(users, LOCK_SH) == 0 else { exit(2) }
      let environment = try meeting.environment()
      try Self.nest(environment.information.maximumReaders, in: environment) {
        meeting.isReady()
        meeting.waitUntilDone()
      }
    }
    #expect(await parent == nil)
    #expect(try tool.urls(in: directory) == ["http://b.example/"])
  }

  private static func nest(_ depth: Int, in environment: LMDBEnvironment, _ body: () -> Void) throws(LMDBError) {
    guard depth > 0 else { return body() }
    try environment.read { (_) throws(LMDBError) in try nest(depth - 1, in: environment, body) }
  }

  private static func isStopped(_ processID: pid_t) -> Bool {
    // A process that has ended is not stopped.
    guard let status = try? String(contentsOfFile: "/proc/\(processID)/stat", encoding: .utf8) else { return false }
    return status.split(separator: ")").last?.split(separator: " ").first == "T"
  }
}
