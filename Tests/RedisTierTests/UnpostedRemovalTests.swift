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

/// Removals that hold on their machine, and that other machines do not know yet.
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
    await wait { !other.cache.isCached(url) && second.membership.file.unposted.isEmpty }
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
    await wait { next.membership.file.unposted.isEmpty }
  }

  @Test("The follower posts each removal that its process did not post once, and everything for those without a slot")
  func manyRemovals() async throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let file = try FleetFile(directory: directory, settings: settings)
    let scopes = (0..<UnpostedRemovals.slotCount).map { RemovalScope.host("\($0).example") }
    let removals = scopes.enumerated().map { FleetRemoval($1, isSoft: $0 % 2 == 0) }
    let announced = file.unposted.announce(removals)
    #expect(Set(announced.map(\.slot)).count == removals.count && announced.allSatisfy { $0.slot != nil })
    // No process of the machine has had the time to post them.
    #expect(!file.unposted.isEmpty && file.unposted.overdue().isEmpty)
    #expect(file.unposted.announce([FleetRemoval(.host("b.example"))]).map(\.slot) == [nil])
    // Another process has them, too.
    let second = try FleetFile(directory: directory, settings: settings)
    #expect(!second.unposted.isEmpty)
    second.unposted.handOver(announced)
    #expect(file.unposted.overdue().map(\.removal) == removals)
    let received = Mutex<[FleetRemoval]>([])
    let node = FleetNode(
      storeID: { 7 },
      remove: { removals in
        received.withLock { $0 += removals }
        return true
      }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node, counters: FleetCounters())
    #expect(follower.start())
    defer { follower.stop() }
    await wait { second.unposted.isEmpty }
    // A machine that joins suspects everything first.
    let purges = received.withLock { $0.filter { $0.effect != .suspect } }
    #expect(purges.count == removals.count + 1)
    #expect(Set(purges) == Set(removals + [FleetRemoval(.everything)]))
    #expect(second.unposted.announce(removals).allSatisfy { $0.slot != nil })
  }

  @Test("Unposted removals survive a restart of the machine, and those that did not reach the disk do not")
  func restart() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    var file: FleetFile? = try FleetFile(directory: directory, settings: settings)
    let removals = ["a.example", "b.example"].map { FleetRemoval(.host($0)) }
    let announced = try #require(file?.unposted.announce(removals))
    file?.unposted.makeDurable(announced)
    file = nil
    try fleet.forgetBoot(of: "1")
    // The first slot is behind the pages of words of the fleet file and of the table.
    try fleet.write(Data(count: 512), at: 8192, ofFleetFile: "1")
    let restarted = try FleetFile(directory: directory, settings: settings)
    #expect(restarted.unposted.overdue().map(\.removal) == [removals[1]])
    #expect(restarted.unposted.announce(removals).map(\.slot) == [0, 2])
  }

  @Test("Processes that announce removals at the same time use different slots")
  func concurrentSlots() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let files = try (0..<4).map { _ in try FleetFile(directory: directory, settings: settings) }
    let slots = Mutex<[Int?]>([])
    DispatchQueue.concurrentPerform(iterations: files.count) { index in
      for _ in 0..<UnpostedRemovals.slotCount / files.count {
        let announced = files[index].unposted.announce([FleetRemoval(.everything)])
        slots.withLock { $0 += announced.map(\.slot) }
      }
    }
    #expect(Set(slots.withLock { $0 }) == Set(0..<UnpostedRemovals.slotCount))
  }
}
