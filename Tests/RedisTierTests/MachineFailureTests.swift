import CacheActivity
import CacheModel
import CachingClient
import Foundation
import FoundationNetworking
import Glibc
import HTTPCaching
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

@testable import FleetSharing
@testable import LMDBURLCache
@testable import RedisTier

/// More failures that the article on fleets lists: of single machines, of clocks, and of a server with older data.
@Suite("Machines that fail in a fleet", .needsRedis, .timeLimit(.minutes(2)))
struct MachineFailureTests {
  @Test("A purge waits once for a suspended machine, which has no lease when it resumes, and then applies the purge")
  func suspended() async throws {
    let pair = try await ProxiedMachine()
    let (one, other, url) = (pair.one, pair.other, pair.url)
    // Nothing is lost, as when a process is suspended, but nothing arrives.
    pair.proxy.hold()
    #expect(try await one.cache.purge(.url(url)) == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 1))
    #expect(!other.hasLease)
    #expect(other.cache.cachedResponse(for: URLRequest(url: url)) == nil)
    #expect(try await one.cache.purge(.all) == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 0))
    pair.proxy.release()
    await wait { other.hasLease }
    #expect(try await other.get(url) != pair.body)
    #expect(try await one.cache.purge(.all) == FleetPurgeResult(confirmedCount: 2, expiredLeaseCount: 0))
  }

  @Test("A server with older data, as after a failover, does not bring back what a cut-off machine has missed")
  func olderData() async throws {
    let pair = try await ProxiedMachine()
    let (one, other, url) = (pair.one, pair.other, pair.url)
    try await one.cache.purge(.host("example.com"))
    try pair.fleet.redis.command("SAVE")
    pair.proxy.cut()
    #expect(try await one.cache.purge(.url(url))?.expiredLeaseCount == 1)
    pair.fleet.redis.kill()
    try pair.fleet.redis.start()
    // The log now ends with the first purge, which the other machine knows.
    pair.proxy.restore()
    await wait { other.hasLease }
    #expect(try await other.get(url) != pair.body)
  }

  @Test("Purges that cannot be made durable are not confirmed, and the machine has no lease until they are")
  func failingSync() async throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let file = try FleetFile(directory: try fleet.makeDirectory("1"), settings: settings)
    let isFailing = SharedSwitch()
    let node = FleetNode(storeID: { 7 }, remove: { _ in !isFailing.isOn }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node)
    #expect(follower.start())
    defer { follower.stop() }
    await wait { file.isLeaseValid }
    try fleet.mature()
    isFailing.set(true)
    let poster = PurgePoster(settings)
    func purge() async throws -> FleetPurgeResult {
      try await onBlockingThread {
        Result { try poster.purge(Purge(removal: Removal(.host("a.example"))), timeout: nil) }
      }.get()
    }
    // The machine leaves, so that purges do not wait for it again and again.
    for _ in 0..<2 { #expect(try await purge().expiredLeaseCount == 0) }
    #expect(!file.isLeaseValid)
    #expect(file.position(ofTag: file.tag)?.cursor == 0)
    isFailing.set(false)
    await wait { file.isLeaseValid }
    #expect(file.position(ofTag: file.tag)?.cursor == 2)
    #expect(try await purge() == FleetPurgeResult(confirmedCount: 1, expiredLeaseCount: 0))
  }

  @Test("Responses of other machines are checked against a purge before its removal counts in the store")
  func announced() async throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let file = try FleetFile(directory: try fleet.makeDirectory("1"), settings: settings)
    let known = Mutex<[(position: UInt64, announced: UInt64?, scope: RemovalScope?)]>([])
    let node = FleetNode(
      storeID: { 7 },
      remove: { _ in
        guard let position = file.position(ofTag: file.tag) else { return true }
        let last = file.lastAnnounced(inEpochOf: position)
        let scope = last.flatMap { file.removal(ofPurge: $0, inEpoch: position.epochNumber)?.scope }
        known.withLock { $0.append((position.cursor, last, scope)) }
        return true
      }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node)
    #expect(follower.start())
    defer { follower.stop() }
    await wait { file.isLeaseValid }
    try fleet.mature()
    let poster = PurgePoster(settings)
    for _ in 0..<2 {
      let result = await onBlockingThread {
        Result { try poster.purge(Purge(removal: Removal(.host("a.example"))), timeout: nil) }
      }
      #expect(try result.get().confirmedCount == 1)
    }
    let seen = known.withLock { $0 }
    #expect(seen.map(\.position) == [0, 1] && seen.map(\.announced) == [1, 2])
    #expect(seen.map(\.scope) == [.host("a.example"), .host("a.example")])
    #expect(file.lastAnnounced(inEpochOf: LogPosition(epoch: [1], epochNumber: 7, cursor: 0)) == nil)
  }

  @Test("A power cut at any step of following the log loses no purge that the machine has confirmed")
  func powerCut() async throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let key = try #require(RequestKey(urlString: "http://a.example/"))
    let store = try Self.open(directory)
    store.store(
      CacheableResponse(
        status: 200, fields: HeaderFields([]), body: Data("x".utf8),
        freshness: FreshnessInfo(responseTime: Date(), initialAge: 0, lifetime: 86_400, date: Date()),
        vary: VaryKey(fields: [])),
      for: key)
    try store.flush()
    let file = try FleetFile(directory: directory, settings: settings)
    let isMember = SharedSwitch()
    let node = FleetNode(
      storeID: { store.ownerID },
      remove: { removals in
        // The machine removes everything when it joins.
        guard isMember.isOn else { return true }
        fleet.copyDirectory("1", to: "received")
        guard store.removeDurably(removals) != nil else { return false }
        fleet.copyDirectory("1", to: "durable")
        return true
      }, log: { _ in }, activity: ActivityReference())
    let follower = Follower(settings: settings, file: file, node: node)
    #expect(follower.start())
    await wait { file.isLeaseValid }
    isMember.set(true)
    let name = file.node.text
    try fleet.mature()
    let result = await onBlockingThread {
      Result { try PurgePoster(settings).purge(Purge(removal: Removal(.host("a.example"))), timeout: nil) }
    }
    #expect(try result.get().confirmedCount == 1)
    try await wait { try fleet.redis.command("ZSCORE", "lmuc:{default}:acks", name) == .bytes(Array("1".utf8)) }
    follower.stop()
    fleet.copyDirectory("1", to: "confirmed")
    // The pages of the fleet file reach the disk in any order, so the file may be newer than the rest.
    fleet.copyDirectory("durable", to: "positioned")
    try fleet.copyFleetFile(of: "confirmed", to: "positioned")
    for (image, isPurged) in [("received", false), ("durable", true), ("positioned", true), ("confirmed", true)] {
      let directory = fleet.directory.appendingPathComponent(image).path
      try fleet.forgetBoot(of: image)
      let store = try Self.open(directory)
      #expect((store.lookup(key) == nil) == isPurged, "\(image)")
      // The machine has no lease before it has asked for purges.
      let file = try FleetFile(directory: directory, settings: settings)
      #expect(!file.isLeaseValid)
      #expect(file.node.text != name)
      let position = try #require(file.position(ofStore: store.ownerID))
      #expect(position.cursor == (image == "received" || image == "durable" ? 0 : 1), "\(image)")
    }
  }

  private static func open(_ directory: String) throws -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: 16 << 20)
    options.checksLease = true
    options.runsInBackground = false
    return try ResponseStore.open(directory: directory, options: options)
  }

  @Test(
    "While Redis does not reply, hits last for a lease; then requests are validated one at a time, without an error")
  func suspendedRedis() async throws {
    let running = Atomic(0)
    let most = Atomic(0)
    let number = Atomic(0)
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.lease = .seconds(2)
    } handler: { _ in
      let count = running.wrappingAdd(1, ordering: .relaxed).newValue
      most.max(count, ordering: .relaxed)
      // An origin that takes its time, so that requests can meet.
      usleep(5000)
      running.subtract(1, ordering: .relaxed)
      let body = number.wrappingAdd(1, ordering: .relaxed).newValue
      return Reply(200, [("Cache-Control", "max-age=600")], "\(body)")
    }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    let body = try await one.get(url)
    fleet.redis.suspend()
    for _ in 0..<10 { #expect(try await one.get(url) == body || !one.hasLease) }
    await wait { !one.hasLease }
    for _ in 0..<3 {
      try await withThrowingTaskGroup(of: String.self) { group in
        for _ in 0..<8 { group.addTask { try await one.get(url) } }
        for try await other in group { #expect(other != body) }
      }
    }
    #expect(most.load(ordering: .relaxed) == 1)
    fleet.redis.resume()
    await wait { one.hasLease }
    let last = try await one.get(url)
    #expect(try await one.get(url) == last)
  }
}

/// The effect of wall clocks that are wrong.
@Suite("Clocks in a fleet")
struct FleetClockTests {
  @Test("A purge by date covers everything on a machine whose clock is wrong, and a soft one counts from its receipt")
  func dates() throws {
    let since = RemovalScope.since(Date(timeIntervalSince1970: 1_000_000_000))
    let host = RemovalScope.host("a.example")
    func purge(_ scope: RemovalScope, isClockOff: Bool) -> Removal {
      Purge(removal: Removal(scope)).removalHere(isClockOff: isClockOff)
    }
    #expect(purge(since, isClockOff: false) == Removal(since))
    #expect(purge(since, isClockOff: true) == Removal(.everything))
    #expect(purge(host, isClockOff: true) == Removal(host))
    let sent = Purge(removal: Removal(host, .stale(since: .distantPast)))
    let start = Date()
    guard case .stale(let date) = sent.removalHere(isClockOff: false).effect else {
      Issue.record("The soft purge became a hard one.")
      return
    }
    #expect((start...Date()).contains(date))
  }

  @Test("An error of the fleet file names the call that failed, and its cause")
  func unusableDirectory() throws {
    let settings = try RedisTier(url: "redis://h", secret: testSecret).settings
    let error = #expect(throws: RedisTierError.self) { try FleetFile(directory: "/missing", settings: settings) }
    #expect(error?.code == .unusableDirectory)
    #expect(error?.reason == "open failed for the fleet's files: No such file or directory")
  }

  @Test("without the ID of the boot, a lease of an earlier boot could count, so opening fails")
  func unknownBoot() throws {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("boot-\(UUID().uuidString)").path
    defer { unlink(path) }
    let missing = #expect(throws: RedisTierError.self) { try FleetFile.bootID(path: path) }
    #expect(missing?.reason == "open of \(path) failed: No such file or directory")
    try "".write(toFile: path, atomically: false, encoding: .utf8)
    let empty = #expect(throws: RedisTierError.self) { try FleetFile.bootID(path: path) }
    #expect(empty?.code == .unusableDirectory)
    #expect(try FleetFile.bootID().prefix(36).allSatisfy { $0 > 0x20 })
  }

  @Test("A changed clock makes a shared response no younger")
  func ages() {
    var object = SharedObject(
      key: [], position: LogPosition(epoch: [], epochNumber: 0, cursor: 0), status: 200,
      fields: HeaderFields([]),
      body: Data(),
      ageAtStoring: 10, lifetime: 600, milliseconds: 600_000)
    // By the clock of Redis it was stored 5 s ago, by that of this machine 100 s ago, or in an hour.
    object.storedAt = Date().timeIntervalSince1970 - 100
    #expect((110..<120).contains(object.age(timeToLive: 595_000)))
    object.storedAt = Date().timeIntervalSince1970 + 3600
    #expect(object.age(timeToLive: 595_000) == 15)
    // Redis's clock was set back, so that the object lives longer than it was stored for.
    #expect(object.age(timeToLive: 900_000) == 10)
  }
}
