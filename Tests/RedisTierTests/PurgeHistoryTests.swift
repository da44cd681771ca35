import CacheModel
import Foundation
import HTTPCaching
import Testing

@testable import RedisTier

@Suite("The check of shared responses against purges", .needsRedis, .timeLimit(.minutes(1)))
struct PurgeHistoryTests {
  /// A file with an epoch of a log.
  private struct Log {
    let file: FleetFile
    var position: LogPosition { file.position(ofTag: file.tag)! }

    init(_ fleet: FleetFixture, cursor: UInt64 = 0) throws {
      file = try FleetFile(directory: try fleet.makeDirectory("1"), settings: try fleet.tier().settings)
      begin("first", cursor: cursor)
    }

    func begin(_ epoch: String, cursor: UInt64 = 0) {
      #expect(file.begin(epoch: Array(epoch.utf8), cursor: cursor, ofStore: 7, replacing: file.tag) != nil)
    }

    func append(_ scope: RemovalScope, number: UInt64) throws {
      let epoch = position.epochNumber
      try file.keep(Purge(removal: Removal(scope)), number: number, inEpoch: epoch)
      file.announce(upTo: number, inEpoch: epoch)
    }
  }

  @Test("A purge covers the responses of its groups, and those that are also for one of its URLs")
  func responses() throws {
    let fleet = try FleetFixture()
    let log = try Log(fleet)
    let history = PurgeHistory(log.file)
    let url = try #require(URL(string: "https://a.example/p?x=1"))
    func mayCover(_ url: String, _ fields: [(String, String)] = []) throws -> Bool {
      let last = try #require(log.file.lastAnnounced(inEpochOf: log.position))
      return history.mayCover(
        try #require(RequestKey(urlString: url)), after: last - 1, upTo: last, inEpoch: log.position.epochNumber,
        fields: HeaderFields(fields))
    }
    try log.append(try #require(.target(of: url)), number: 1)
    #expect(try mayCover("https://a.example/p?x=1") && !mayCover("https://a.example/p?x=2"))
    #expect(try mayCover("https://a.example/p?x=2", [("No-Vary-Search", "params")]))
    #expect(try !mayCover("https://a.example/q?x=2", [("No-Vary-Search", "params")]))
    try log.append(try #require(.group("g", ofOrigin: url)), number: 2)
    #expect(try mayCover("https://a.example/q", [("Cache-Groups", "\"g\"")]) && !mayCover("https://a.example/q"))
    try log.append(try #require(.tag("t", in: ["xkey"])), number: 3)
    #expect(try mayCover("https://b.example/q", [("xkey", "s t")]) && !mayCover("https://a.example/q", [("xkey", "s")]))
    // When another machine stored its copy is not known.
    try log.append(.since(.distantFuture - 1), number: 4)
    #expect(try mayCover("https://a.example/q"))
  }

  @Test("Purges that the fleet file no longer has, and those of before the position, cover everything")
  func forgotten() throws {
    let fleet = try FleetFixture()
    let log = try Log(fleet, cursor: 10)
    let history = PurgeHistory(log.file)
    let key = try #require(RequestKey(urlString: "https://a.example/"))
    func mayCover(_ history: PurgeHistory, after number: UInt64) -> Bool {
      let last = log.file.lastAnnounced(inEpochOf: log.position)!
      let epoch = log.position.epochNumber
      return history.mayCover(key, after: number, upTo: last, inEpoch: epoch, fields: HeaderFields())
    }
    func mayCover(after number: UInt64) -> Bool { mayCover(history, after: number) }
    try log.append(.host("b.example"), number: 11)
    #expect(mayCover(after: 9) && !mayCover(after: 10))
    // More than the index and the file keep.
    let last = 11 + FleetFile.slotCount + 100
    for number in 12...last {
      try log.append(.host("\(number).example"), number: number)
      if number == last / 2 { #expect(!mayCover(after: number - 1)) }
    }
    #expect(mayCover(after: 10) && mayCover(after: 200))
    #expect(!mayCover(after: last - 1) && !mayCover(after: last - 1000))
    // Another process reads them all at once.
    let other = PurgeHistory(log.file)
    #expect(!mayCover(other, after: last - 1000) && mayCover(other, after: 10))
    // The numbers of another epoch say nothing.
    log.begin("second")
    try log.append(.host("a.example"), number: 1)
    #expect(mayCover(after: 0) && !mayCover(after: 1))
  }
}
