import CacheActivity
import CacheModel
import CachingClient
import Dispatch
import Foundation
import FoundationNetworking
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// Removals that hold on their machine, and that other machines may not obey yet.
@Suite("Unposted removals of a machine in a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct UnpostedRemovalTests {
  @Test(
    "After a removal that was not posted no cache of the machine uses an older shared response, and it is posted later",
    arguments: [false, true])
  func notPosted(_ isPurge: Bool) async throws {
    // The lease outlasts the test, and the follower waits for purges for minutes.
    let fleet = try FleetFixture { $0.lease = .seconds(600) }
    let url = fleet.origin.url("/a")
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    let other = try await fleet.machine("2")
    let one = try await fleet.machine("1", over: proxy)
    let second = try await fleet.machine("1", over: proxy)
    let before = try await other.get(url)
    try await fleet.waitForObjects(1)
    proxy.cut()
    if isPurge {
      let error = await #expect(throws: RedisTierError.self) {
        try await one.cache.purge(.url(url), timeout: .milliseconds(50))
      }
      #expect(error?.code == .notPosted)
    } else {
      await onBlockingThread { one.cache.removeCachedResponse(for: URLRequest(url: url)) }
    }
    proxy.restore()
    #expect(try await second.get(url) != before)
    #expect(other.cache.isCached(url))
    // Now the follower notices that its connection is dead.
    try fleet.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await wait { !other.cache.isCached(url) && !second.membership.file.unposted.hasPending }
    // The machine uses shared responses again. The first request finds that its connection is dead.
    _ = try await other.get(fleet.origin.url("/c"))
    let later = fleet.origin.url("/b")
    let body = try await other.get(later)
    try await wait { try fleet.objectKeys().count == 2 }
    #expect(try await second.get(later) == body)
  }

  @Test("A removal that was not posted is posted after its process has ended")
  func endedProcess() async throws {
    let fleet = try FleetFixture { $0.commandTimeout = .milliseconds(200) }
    let url = fleet.origin.url("/a")
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    let other = try await fleet.machine("2")
    var one: Machine? = try await fleet.machine("1", over: proxy)
    let before = try await other.get(url)
    proxy.cut()
    await onBlockingThread { [one] in one?.cache.removeCachedResponse(for: URLRequest(url: url)) }
    one = nil
    proxy.restore()
    let next = try await fleet.machine("1", over: proxy)
    await wait { !other.cache.isCached(url) }
    #expect(try await other.get(url) != before)
    await wait { !next.membership.file.unposted.hasPending }
  }

  /// Ways to remove that do not wait until all machines obey.
  enum LostRemoval: CaseIterable, Sendable {
    case method, unsafeRequest, unconfirmedPurge

    func run(_ url: URL, on cache: LMDBURLCache) async throws {
      switch self {
      case .method: await onBlockingThread { cache.removeCachedResponse(for: URLRequest(url: url)) }
      case .unsafeRequest:
        var request = URLRequest(url: url)
        request.httpMethod = "DELETE"
        _ = try await cache.data(for: request)
      case .unconfirmedPurge:
        let error = await #expect(throws: RedisTierError.self) {
          try await cache.purge(.url(url), timeout: .seconds(1))
        }
        #expect(error?.code == .unconfirmed)
      }
    }
  }

  @Test(
    "A removal reaches a machine that had not received it when Redis lost its data, also after its process has ended",
    arguments: LostRemoval.allCases, [false, true])
  func lostByRedis(_ removal: LostRemoval, _ processEnds: Bool) async throws {
    // The lease outlasts the test, so the machine would use its response.
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.lease = .seconds(600)
    }
    let url = fleet.origin.url("/a")
    let proxy = try SocketProxy(to: fleet.redis.socketPath)
    var one: Machine? = try await fleet.machine("1")
    let lagging = try await fleet.machine("2", over: proxy)
    let before = try await lagging.get(url)
    proxy.hold()
    try await removal.run(url, on: #require(one).cache)
    await wait { one?.membership.file.unposted.hasPending == false }
    #expect(one?.membership.file.unposted.hasReceived == true)
    if processEnds { one = nil }
    fleet.redis.kill()
    try fleet.redis.start()
    proxy.release()
    if processEnds { one = try await fleet.machine("1") }
    await wait { !lagging.cache.isCached(url) }
    #expect(lagging.hasLease)
    #expect(try await lagging.get(url) != before)
    withExtendedLifetime(one) {}
  }

  @Test("A received removal stays until all machines have confirmed it or their leases have ended, or the epoch ends")
  func settling() throws {
    let fleet = try FleetFixture()
    let file = try FleetFile(directory: try fleet.makeDirectory("1"), settings: try fleet.tier().settings)
    let removals = file.unposted
    let wait: UInt64 = 1_000_000_000
    let purges = ["a.example", "b.example"].map { removals.announce(Removal(.host($0))) }
    func announceAnother() -> [Int] { removals.slots(of: [removals.announce(Removal(.everything))]) }
    func settle(epoch: UInt64 = 1, confirmed: UInt64 = 0, after time: UInt64 = 0) {
      removals.settle(inEpoch: epoch, confirmedUpTo: confirmed, renewedAt: BootClock.now + time, wait: wait)
    }
    removals.noteReceived(Array(purges.prefix(1)), after: 4, inEpoch: 1)
    #expect(removals.hasPending && removals.hasReceived)
    removals.noteReceived(purges, after: 4, inEpoch: 1)
    #expect(!removals.hasPending)
    settle(confirmed: 4)
    #expect(announceAnother() == [2])
    // A machine confirms the first one only.
    settle(confirmed: 5)
    #expect(removals.hasReceived)
    #expect(announceAnother() == [0])
    // The epoch ends, so the other one is to be posted again, at once.
    settle(epoch: 2, confirmed: 100, after: 2 * wait)
    #expect(!removals.hasReceived)
    #expect(removals.overdue().map(\.removal) == [Removal(.host("b.example"))])
    removals.noteReceived(Array(purges.suffix(1)), after: 5, inEpoch: 2)
    settle(epoch: 2, after: wait - 1_000_000)
    #expect(removals.hasReceived)
    settle(epoch: 2, after: wait + 1_000_000)
    #expect(!removals.hasReceived)
    #expect(announceAnother() == [1])
  }

  @Test("A received removal is posted again after a restart of the machine")
  func receivedBeforeRestart() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    var file: FleetFile? = try FleetFile(directory: directory, settings: settings)
    let removal = Removal(.host("a.example"))
    let purge = try #require(file?.unposted.announce(removal))
    file?.unposted.noteReceived([purge], after: 0, inEpoch: 1)
    file = nil
    try fleet.forgetBoot(of: "1")
    let restarted = try FleetFile(directory: directory, settings: settings)
    #expect(restarted.unposted.overdue().map(\.removal) == [removal])
  }

  @Test("The follower posts each removal that its process did not post once, and everything for those without a slot")
  func manyRemovals() async throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let file = try FleetFile(directory: directory, settings: settings)
    let scopes = (0..<UnpostedRemovals.slotCount).map { RemovalScope.host("\($0).example") }
    let removals = scopes.enumerated().map { Removal($1, $0 % 2 == 0 ? .stale(since: .distantPast) : .removed) }
    let announced = removals.map { file.unposted.announce($0) }
    #expect(file.unposted.slots(of: announced).count == removals.count)
    // No process of the machine has had the time to post them.
    #expect(file.unposted.hasPending && file.unposted.overdue().isEmpty)
    #expect(file.unposted.slots(of: [file.unposted.announce(Removal(.host("b.example")))]).isEmpty)
    // Another process has them, too.
    let second = try FleetFile(directory: directory, settings: settings)
    #expect(second.unposted.hasPending)
    second.unposted.handOver(announced)
    // Compared first: a failure would print thousands of removals.
    let isOverdue = file.unposted.overdue().map(\.removal) == removals + [Removal(.everything)]
    #expect(isOverdue)
    let received = Mutex<[Removal]>([])
    let node = FleetNode(
      storeID: { 7 },
      remove: { removals in
        received.withLock { $0 += removals }
        return true
      }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node)
    #expect(follower.start())
    defer { follower.stop() }
    await wait { !second.unposted.hasPending }
    // A machine that joins suspects everything first.
    let purges = received.withLock { $0.filter { $0.effect != .suspect } }.map { removal in
      // A soft one counts from when this machine received it.
      Removal(removal.scope, removal.isHard ? .removed : .stale(since: .distantPast))
    }
    #expect(purges.count == removals.count + 1)
    let areAllReceived = Set(purges) == Set(removals + [Removal(.everything)])
    #expect(areAllReceived)
    // The slots are free again when all machines have confirmed the purges.
    try fleet.mature()
    await wait { !second.unposted.hasReceived }
    #expect(second.unposted.slots(of: removals.map { second.unposted.announce($0) }).count == removals.count)
  }

  @Test("Unposted removals survive a restart of the machine, and those that did not reach the disk do not")
  func restart() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    var file: FleetFile? = try FleetFile(directory: directory, settings: settings)
    let removals = ["a.example", "b.example"].map { Removal(.host($0)) }
    let announced = removals.compactMap { file?.unposted.announce($0) }
    file?.unposted.makeDurable(announced)
    file = nil
    try fleet.forgetBoot(of: "1")
    // The first slot is behind the pages of words of the fleet file and of the table, and those of the receipts.
    try fleet.write(Data(count: 512), at: 73_728, ofFleetFile: "1")
    let restarted = try FleetFile(directory: directory, settings: settings)
    #expect(restarted.unposted.overdue().map(\.removal) == [removals[1]])
    #expect(restarted.unposted.slots(of: removals.map { restarted.unposted.announce($0) }) == [0, 2])
  }

  @Test("Processes that announce removals at the same time use different slots")
  func concurrentSlots() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let files = try (0..<4).map { _ in try FleetFile(directory: directory, settings: settings) }
    let purges = Mutex<[Purge]>([])
    DispatchQueue.concurrentPerform(iterations: files.count) { index in
      for _ in 0..<UnpostedRemovals.slotCount / files.count {
        let purge = files[index].unposted.announce(Removal(.everything))
        purges.withLock { $0.append(purge) }
      }
    }
    let count = UnpostedRemovals.slotCount / files.count * files.count
    #expect(files[0].unposted.slots(of: purges.withLock { $0 }) == Array(0..<count))
  }
}
