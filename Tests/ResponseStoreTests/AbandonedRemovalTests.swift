import CDiskFaults
import CacheModel
import Foundation
import Glibc
import ResponseStore
import Testing

/// A removal whose process ends before the call has returned is in force at once, or never.
@Suite("Removals of killed processes", .endsFixtures)
struct AbandonedRemovalTests {
  private static let url = "http://a.example/"

  /// The steps: before and after the frame is written, before and after it is synced, and after the call has returned.
  @Test(
    "A removal is in force when its process is killed, or never comes into force", arguments: 1...5)
  func killed(step: Int) async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    await #expect(processExitsWith: .signal(SIGKILL)) {
      [directory = fixture.directory as String, step = step as Int] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      LogSteps.observe(logOf: directory) { if $0 == step { endNow() } }
      store.remove(.everything)
      endNow()
    }
    let isInForce = step == 5
    #expect((fixture.body(Self.url) == nil) == isInForce)
    fixture.store.store(fixture.response("http://b.example/"))
    fixture.drain()
    // A later removal reads the log. After a power failure, another process reads it from the disk.
    if step.isMultiple(of: 2) { fixture.store.remove(fixture.key("http://c.example/")) }
    fixture.store.discardAbandonedRemovals()
    StatusPage(directory: fixture.directory)[StatusPage.boot] += 1
    try fixture.reopen()
    fixture.drain()
    #expect((fixture.body(Self.url) == nil) == isInForce)
    #expect(fixture.body("http://b.example/") != nil)
    // The log goes on as usual.
    fixture.store.remove(fixture.key("http://b.example/"))
    #expect(fixture.body("http://b.example/") == nil)
    try fixture.reopen()
    #expect(fixture.body("http://b.example/") == nil)
    #expect((fixture.body(Self.url) == nil) == isInForce)
    #expect(fixture.logged.all == [])
  }

  @Test("A removal in progress in a living process takes effect together with a later one")
  func living() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let turns = Turns(directory: fixture.directory)
    defer { turns.remove() }
    let store = fixture.store
    async let answer: Void = turns.answerChild {
      store.remove(RequestKey(urlString: "http://b.example/")!)
    }
    await #expect(processExitsWith: .success) {
      [directory = fixture.directory as String, turns = turns as Turns] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      LogSteps.turns = turns
      LogSteps.observe(logOf: directory) { step in
        guard step == 3 else { return }
        LogSteps.turns?.childIsReady()
        LogSteps.turns?.waitForParent()
      }
      store.remove(.everything)
      guard store.lookup(RequestKey(urlString: Self.url)!) == nil else { exit(2) }
      store.close()
    }
    await answer
    #expect(fixture.body(Self.url) == nil)
  }
}

/// The writes and syncs of a process to its removal log, as numbered steps: before and after each.
private enum LogSteps {
  nonisolated(unsafe) static var turns: Turns?
  nonisolated(unsafe) private static var inode: ino_t = 0
  nonisolated(unsafe) private static var step = 0
  nonisolated(unsafe) private static var action: (Int) -> Void = { _ in }

  static func observe(logOf directory: String, _ action: @escaping (Int) -> Void) {
    var status = stat()
    guard stat(directory + "/data-1/" + "LMDBURLCache.removals", &status) == 0 else { exit(9) }
    (inode, step, self.action) = (status.st_ino, 0, action)
    disk_faults_install(
      { descriptor in LogSteps.around(descriptor) { disk_faults_real_sync(descriptor) } },
      { descriptor, bytes, count, offset in
        LogSteps.around(descriptor) { disk_faults_real_write(descriptor, bytes, count, offset) }
      }, nil)
  }

  private static func around<R>(_ descriptor: CInt, _ body: () -> R) -> R {
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_ino == inode else { return body() }
    reach()
    defer { reach() }
    return body()
  }

  private static func reach() {
    step += 1
    action(step)
  }
}

private func endNow() -> Never {
  kill(getpid(), SIGKILL)
  while true { pause() }
}
