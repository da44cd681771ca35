import CacheActivity
import CacheModel
import CachingClient
import Foundation
import Glibc
import LoopbackOrigin
import ResponseStore
import Testing

@testable import LMDBURLCache
@testable import RedisTier

/// Which process of a machine follows the fleet, what the machine reports about its lease, and copies of a machine.
@Suite("Following a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct TakeoverTests {
  @Test("Another process of the machine follows when the one that did is suspended, and both obey purges")
  func suspendedFollower() async throws {
    // The lease and the secret are those of the process below.
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.lease = .seconds(2)
      $0.commandTimeout = .milliseconds(300)
    }
    let tier = try RedisTier(
      url: fleet.redis.url, secret: Data("the secret of the demonstration!".utf8), configuration: fleet.configuration)
    let directory = fleet.directory.appendingPathComponent("1")
    let process = try MachineProcess(directory: directory.path, redisURL: fleet.redis.url)
    await wait { FleetMachineState.read(directory: directory.path)?.hasLease == true }
    #expect(FleetMachineState.read(directory: directory.path)?.followerProcessID == process.id)
    let machine = try Machine(directory, tier)
    let other = try Machine(fleet.directory.appendingPathComponent("2"), tier)
    await wait { other.hasLease }
    try fleet.mature()
    let url = fleet.origin.url("/a")
    let before = try await machine.get(url)
    process.suspend()
    await wait { machine.membership.file.isFollower }
    await wait { machine.hasLease }
    #expect(machine.lines.all.contains { $0.contains("The process \(process.id) does not respond") })
    // The other processes of the machine take part in purges again.
    await wait { machine.lines.all.contains { $0.contains("follows its fleet again") } }
    #expect(try await other.cache.purge(.url(url)).map { $0.confirmedCount + $0.expiredLeaseCount } == 2)
    let after = try await machine.get(url)
    #expect(after != before)
    machine.cache.flush()
    // The process does not follow when it goes on, and obeys what the other one has applied.
    process.resume()
    #expect(try process.ask(url.absoluteString).hasPrefix(after + ","))
    #expect(machine.membership.file.isFollower)
    #expect(FleetMachineState.read(directory: directory.path)?.followerProcessID == getpid())
    #expect(try await other.cache.purge(.url(url)) == FleetPurgeResult(confirmedCount: 2, expiredLeaseCount: 0))
    #expect(!(try process.ask(url.absoluteString).hasPrefix(after + ",")))
  }

  @Test("A process that was suspended while it followed changes nothing after another one has taken over")
  func replacedFollower() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    let (old, new) = (
      try FleetFile(directory: directory, settings: settings), try FleetFile(directory: directory, settings: settings)
    )
    let now = BootClock.now
    #expect(old.becomeFollower() && !new.becomeFollower())
    #expect(!new.becomeFollower(afterSilence: 60_000_000_000))
    let first = try #require(old.begin(epoch: Array("first".utf8), cursor: 3, ofStore: 7, replacing: old.tag))
    #expect(old.extendLease(to: now + 1_000_000_000))
    let (deadline, stale) = (old.deadline, old.tag)
    #expect(deadline <= now + 1_000_000_000 && deadline > now + 999_000_000)
    waitUntil { BootClock.now > now + 1_000_000 }
    #expect(new.becomeFollower(afterSilence: 1000))
    #expect(new.isFollower && new.hasTakenOver && !old.isFollower)
    // The lease is still that of the machine.
    #expect(new.deadline == deadline)
    #expect(!old.extendLease(to: now + 9_000_000_000))
    #expect(new.deadline == deadline)
    let second = try #require(new.begin(epoch: Array("second".utf8), cursor: 1, ofStore: 7, replacing: stale))
    let purge = Purge(removal: Removal(.host("a.example")))
    try new.keep(purge, number: 2, inEpoch: second)
    new.announce(upTo: 2, inEpoch: second)
    let position = try #require(new.position(ofTag: new.tag))
    // Each step of the old one, wherever it was suspended.
    #expect(old.begin(epoch: Array("third".utf8), cursor: 9, ofStore: 7, replacing: stale) == nil)
    #expect(!old.advance(to: 9, inEpoch: first))
    old.announce(upTo: 9, inEpoch: first)
    #expect(new.position(ofTag: new.tag) == position && position.epoch == Array("second".utf8))
    #expect(new.lastAnnounced(inEpochOf: position) == 2)
    #expect(new.removal(ofPurge: 2, inEpoch: second) == purge.removal)
    try old.keep(purge, number: 2, inEpoch: first)
    #expect(new.removal(ofPurge: 2, inEpoch: second) == nil)
    #expect(new.advance(to: 2, inEpoch: second))
    // It can follow again when the new one has ended.
    old.stopFollowing()
    #expect(!old.becomeFollower())
    new.stopFollowing()
    #expect(old.becomeFollower() && old.isFollower && !old.hasTakenOver)
    #expect(old.extendLease(to: now + 2_000_000_000))
  }

  @Test("A machine logs why it is cut off, and when it is back, and tells other programs")
  func cutOff() async throws {
    let fleet = try FleetFixture { $0.maximumSharedBodyByteCount = 0 }
    let machine = try await fleet.machine("1")
    let directory = fleet.directory.appendingPathComponent("1").path
    let present = try #require(FleetMachineState.read(directory: directory))
    #expect(present.hasLease && present.failure == nil && present.secondsCutOff == nil)
    #expect(try #require(present.leaseSecondsLeft) <= 1)
    fleet.redis.kill()
    await wait { machine.lines.all.contains { $0.contains("is cut off from its fleet") } }
    let line = try #require(machine.lines.all.first { $0.contains("is cut off from its fleet") })
    #expect(line.contains("because no connection to Redis at \(fleet.redis.url)"))
    let cutOff = try #require(FleetMachineState.read(directory: directory))
    #expect(!cutOff.hasLease && cutOff.secondsCutOff != nil)
    #expect(cutOff.failure?.hasPrefix("no connection to Redis") == true)
    #expect(cutOff.followerProcessID == getpid())
    try fleet.redis.start()
    await wait { machine.lines.all.contains { $0.contains("follows its fleet again after ") } }
    let back = try #require(FleetMachineState.read(directory: directory))
    #expect(back.hasLease && back.failure == nil)
    #expect(machine.lines.all.filter { $0.contains("is cut off") }.count == 1)
    #expect(FleetMachineState.read(directory: fleet.directory.path) == nil)
  }

  @Test("A copied directory joins as another machine without a lease, and validates what it has stored")
  func copiedDirectory() async throws {
    // The lease outlasts the test.
    let fleet = try FleetFixture {
      $0.maximumSharedBodyByteCount = 0
      $0.lease = .seconds(600)
    }
    let url = fleet.origin.url("/a")
    let one = try await fleet.machine("1")
    _ = try await one.get(url)
    one.cache.flush()
    fleet.copyDirectory("1", to: "2")
    fleet.redis.suspend()
    defer { fleet.redis.resume() }
    let copy = try Machine(fleet.directory.appendingPathComponent("2"), fleet.tier())
    #expect(!copy.hasLease && one.hasLease)
    #expect(copy.lines.all.contains { $0.contains("is a copy") })
    #expect(copy.membership.file.node != one.membership.file.node)
    fleet.redis.resume()
    await wait { copy.hasLease }
    #expect(copy.cache.isCached(url))
    #expect(try await copy.get(url) != one.get(url))
    #expect(fleet.origin.requests.last?["If-None-Match"] != nil)
    try fleet.mature()
    #expect(try await one.cache.purge(.all) == FleetPurgeResult(confirmedCount: 2, expiredLeaseCount: 0))
  }

  @Test(
    "A directory that is opened again, or was renamed, is no copy, unless the machine has another file of its inode")
  func identity() throws {
    let fleet = try FleetFixture()
    let settings = try fleet.tier().settings
    let directory = try fleet.makeDirectory("1")
    var file: FleetFile? = try FleetFile(directory: directory, settings: settings)
    #expect(file?.isCopy == false)
    let node = file?.node
    _ = try #require(file?.begin(epoch: Array("e".utf8), cursor: 3, ofStore: 7, replacing: 0))
    file = nil
    let renamed = fleet.directory.appendingPathComponent("2").path
    try FileManager.default.moveItem(atPath: directory, toPath: renamed)
    file = try FleetFile(directory: renamed, settings: settings)
    #expect(file?.isCopy == false && file?.node == node && file?.position(ofStore: 7)?.cursor == 3)
    file = nil
    // As on another device, in one boot; after a restart the number of a device can be another one.
    try fleet.write(Data([1, 2, 3, 4, 5, 6, 7, 8]), at: UInt64(FleetFileLayout.Offset.device), ofFleetFile: "2")
    file = try FleetFile(directory: renamed, settings: settings)
    #expect(file?.isCopy == true && file?.node != node && file?.position(ofStore: 7) == nil)
    _ = try #require(file?.begin(epoch: Array("e".utf8), cursor: 4, ofStore: 7, replacing: file!.tag))
    file = nil
    try fleet.write(Data([1, 2, 3, 4, 5, 6, 7, 8]), at: UInt64(FleetFileLayout.Offset.device), ofFleetFile: "2")
    try fleet.forgetBoot(of: "2")
    file = try FleetFile(directory: renamed, settings: settings)
    #expect(file?.isCopy == false && file?.position(ofStore: 7)?.cursor == 4)
  }
}

/// A process of a machine: the one of the tool's demonstration, which loads the URLs of its standard input.
private final class MachineProcess {
  private let process = Process()
  private let input = Pipe()
  private let output = Pipe()

  init(directory: String, redisURL: String) throws {
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
      .deletingLastPathComponent().appendingPathComponent("urlcache")
    process.arguments = ["demo-machine", directory, redisURL]
    process.standardInput = input
    process.standardOutput = output
    process.standardError = FileHandle.nullDevice
    try process.run()
  }

  deinit {
    kill(process.processIdentifier, SIGKILL)
    process.waitUntilExit()
  }

  var id: Int32 { process.processIdentifier }
  func suspend() { kill(id, SIGSTOP) }
  func resume() { kill(id, SIGCONT) }

  /// Sends a line, and returns the one that the process prints.
  func ask(_ line: String) throws -> String {
    try input.fileHandleForWriting.write(contentsOf: Data((line + "\n").utf8))
    var answer: [UInt8] = []
    while let byte = try output.fileHandleForReading.read(upToCount: 1)?.first, byte != UInt8(ascii: "\n") {
      answer.append(byte)
    }
    return String(decoding: answer, as: UTF8.self)
  }
}
