import CacheModel
import Foundation
import Glibc
import HTTPCaching
import ResponseStore
import Testing

/// Lets two processes take turns: each waits for a byte from the other.
struct Turns: Codable, Sendable {
  let directory: String

  init(directory: String) {
    self.directory = directory
    mkfifo(directory + ".child", 0o600)
    mkfifo(directory + ".parent", 0o600)
  }

  func remove() {
    unlink(directory + ".child")
    unlink(directory + ".parent")
  }

  private func send(_ name: String) {
    let descriptor = open(directory + name, O_WRONLY)
    _ = write(descriptor, "x", 1)
    close(descriptor)
  }

  private func receive(_ name: String) {
    let descriptor = open(directory + name, O_RDONLY)
    var byte: UInt8 = 0
    _ = read(descriptor, &byte, 1)
    close(descriptor)
  }

  func childIsReady() { send(".child") }
  func waitForChild() { receive(".child") }
  func parentIsReady() { send(".parent") }
  func waitForParent() { receive(".parent") }

  /// Waits for the child, calls `body` on a thread, and lets the child continue.
  func answerChild(with body: @escaping @Sendable () -> Void) async {
    await onThread {
      waitForChild()
      body()
      parentIsReady()
    }
  }
}

/// Runs `body`, which may block, on its own thread.
func onThread(_ body: @escaping @Sendable () -> Void) async {
  await withCheckedContinuation { continuation in
    Thread {
      body()
      continuation.resume()
    }.start()
  }
}

func childResponse(_ url: String, body: Data = Data("body".utf8)) -> KeyedResponse {
  let now = Date()
  return KeyedResponse(
    key: RequestKey(urlString: url)!,
    response: CacheableResponse(
      status: 200, fields: HeaderFields([("Content-Type", "text/plain")]), body: body,
      freshness: FreshnessInfo(responseTime: now, initialAge: 0, lifetime: 60, date: now), vary: VaryKey(fields: [])))
}

@Suite("Several processes", .endsFixtures)
struct ProcessTests {
  private static let url = "http://a.example/"

  @Test("A removal takes effect in another process at once, also for its pending writes")
  func purge() async throws {
    let fixture = try StoreFixture()
    for number in 0..<400 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    let turns = Turns(directory: fixture.directory)
    defer { turns.remove() }
    let store = fixture.store
    async let parent: Void = turns.answerChild { store.remove(.everything) }
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String, turns = turns as Turns] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      let key = RequestKey(urlString: "http://a.example/7")!
      guard store.lookup(key) != nil else { exit(2) }
      // Still a pending write when the other process removes everything.
      store.store(childResponse("http://a.example/pending"))
      guard let old = store.lookup(RequestKey(urlString: "http://a.example/8")!) else { exit(3) }
      var token = store.removalToken
      turns.childIsReady()
      turns.waitForParent()
      guard store.lookup(key) == nil else { exit(4) }
      let pending = RequestKey(urlString: "http://a.example/pending")!
      guard store.lookup(pending) == nil else { exit(5) }
      let effect = store.effectOfRemovals(on: key, storedAt: Date(), fields: { [:] }, since: &token)
      guard effect == .removed else { exit(6) }
      store.update(old, fields: old.fields, freshness: old.freshness)
      while store.writePending() {}
      guard store.lookup(pending) == nil, store.lookup(old.key) == nil else { exit(7) }
      guard store.statistics.droppedWrites == 2 else { exit(8) }
      store.store(childResponse("http://a.example/after"))
      store.close()
    }
    await parent
    #expect(fixture.body("http://a.example/after") != nil)
    #expect(fixture.body("http://a.example/pending") == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 1)
  }

  @Test("A store that fails in one process fails in all processes")
  func failure() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      store.fail()
    }
    #expect(fixture.body(Self.url) == nil)
    try fixture.reopen()
    #expect(fixture.body(Self.url) == nil)
    fixture.store.store(fixture.response(Self.url))
    #expect(fixture.body(Self.url) != nil)
  }

  @Test(
    "The chunks of a body that a killed process was writing are deleted",
    arguments: [false, true])
  func killInLargeBody(isOtherOpen: Bool) async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    if !isOtherOpen { fixture.close() }
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      let body = store.makeIncomingBody()
      for _ in 0..<3 { guard body.write([pseudorandomData(1 << 20, seed: 1)]) else { exit(2) } }
      kill(getpid(), SIGKILL)
    }
    if !isOtherOpen { try fixture.open() }
    #expect(fixture.body(Self.url) != nil)
    let live = try fixture.store.livePageCount()
    if isOtherOpen { try fixture.store.noteUnfinishedBodies() }
    fixture.drain()
    #expect(try fixture.store.livePageCount() < live)
    #expect(try fixture.store.livePageCount() < 30)
  }

  @Test("A process that exits without closing keeps its stored responses, regardless of its other threads")
  func exitWithoutClose() async throws {
    let fixture = try StoreFixture()
    fixture.close()
    await #expect(processExitsWith: .exitCode(0)) { [directory = fixture.directory as String] in
      var options = ResponseStore.Options(capacityByteCount: 16 << 20)
      options.commitDelay = .seconds(60)
      options.log = { _ in }
      let store = try ResponseStore.open(directory: directory, options: options)
      for number in 0..<500 { store.store(childResponse("http://a.example/\(number)")) }
      for thread in 0..<3 {
        Thread {
          // Readers and a thread that removes continue while the process exits.
          while true {
            _ = store.lookup(RequestKey(urlString: "http://a.example/\(thread)")!)
            if thread == 2 { store.remove(RequestKey(urlString: "http://b.example/")!) }
          }
        }.start()
      }
      exit(0)
    }
    try fixture.open()
    for number in 0..<500 { #expect(fixture.body("http://a.example/\(number)") != nil) }
  }

  @Test("A forked child neither hangs nor does damage, and can open the directory itself")
  func fork() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    fixture.close()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      var options = ResponseStore.Options(capacityByteCount: 16 << 20)
      options.log = { _ in }
      let key = RequestKey(urlString: Self.url)!
      func useInherited(_ store: ResponseStore) {
        store.store(childResponse("http://a.example/x"))
        store.remove(key)
        do throws(StoreError) { try store.flush() } catch {}
      }
      func reopen(_ directory: String) -> ResponseStore? {
        try? ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      }
      // If another thread holds a lock of Swift's runtime during the fork, the child waits for it forever. Therefore
      // every operation runs before the fork, in the background threads twice: after the first time all type metadata
      // exists, and no thread needs the lock.
      let other = directory + ".other"
      guard let rehearsed = reopen(other) else { exit(6) }
      useInherited(rehearsed)
      _ = rehearsed.lookup(key)
      rehearsed.close()
      try FileManager.default.removeItem(atPath: other)
      let store = try ResponseStore.open(directory: directory, options: options)
      for capacity in [32 << 20, 16 << 20] {
        store.store(childResponse("http://a.example/y"))
        try store.flush()
        store.capacityByteCount = capacity
      }
      guard store.lookup(key) != nil else { exit(2) }
      let child = forkNow()
      if child == 0 {
        useInherited(store)
        guard store.lookup(key) == nil else { _exit(3) }
        guard let reopened = reopen(directory), reopened !== store, reopened.lookup(key) != nil else { _exit(4) }
        reopened.close()
        exit(0)
      }
      var status: CInt = 0
      waitpid(child, &status, 0)
      guard status == 0, store.lookup(key) != nil else { exit(5) }
      store.close()
    }
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
  }
}

/// Calls `fork`, which Swift hides but the store supports.
///
/// The child ends after 20 s at the latest.
func forkNow() -> pid_t {
  typealias Fork = @convention(c) () -> pid_t
  let child = unsafeBitCast(dlsym(nil, "fork"), to: Fork.self)()
  if child == 0 {
    // Threads of a dispatch queue block SIGALRM.
    var alarmSignal = sigset_t()
    sigemptyset(&alarmSignal)
    sigaddset(&alarmSignal, SIGALRM)
    pthread_sigmask(SIG_UNBLOCK, &alarmSignal, nil)
    alarm(20)
  }
  return child
}
