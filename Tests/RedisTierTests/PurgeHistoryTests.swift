import CacheModel
import FoundationEssentials
import ResponseStore
import Testing

@testable import RedisTier

@Suite("The check of shared responses against purges", .needsRedis, .timeLimit(.minutes(1)))
struct PurgeHistoryTests {
  /// The state of a SplitMix64 generator.
  private struct Random: RandomNumberGenerator {
    var state: UInt64
    mutating func next() -> UInt64 {
      state &+= 0x9E37_79B9_7F4A_7C15
      var z = state
      z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
      z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
      return z ^ (z >> 31)
    }
  }

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
      try file.keep(LogEntry(number: number, id: RandomID(), scope: scope.encodedBytes), inEpoch: epoch)
      file.announce(upTo: number, inEpoch: epoch)
    }
  }

  private static func key(_ random: inout Random) -> String {
    let host = ["a.example", "b.example"].randomElement(using: &random)!
    let path = (0..<Int.random(in: 1...4, using: &random)).map { _ in ["x", "yy", "zzz"].randomElement(using: &random)!
    }
    let query = ["", "", "?u=1", "?u=2"].randomElement(using: &random)!
    return "https://\(host)/" + path.joined(separator: "/") + query
  }

  private static func scope(_ random: inout Random) throws -> RemovalScope {
    let url = try #require(URL(string: key(&random)))
    switch Int.random(in: 0..<40, using: &random) {
    case 0: return .everything
    case 1: return .since(Date())
    case 2: return .host("b.example")
    case 3..<10: return try #require(.urlPrefix(url))
    case 10..<20: return try #require(.group(["g", "h", ""].randomElement(using: &random)!, ofOrigin: url))
    case 20..<23: return .key(try #require(RequestKey(url: url)).bytes)
    case 23..<25: return .resource(try #require(RequestKey(url: url)))
    case 25: return .prefix(try #require(RequestKey(url: url)).bytes + [UInt8](repeating: 120, count: 600))
    default: return try #require(.target(of: url))
    }
  }

  @Test("The index covers a response if and only if a purge since its number does", arguments: [1, 2, 3] as [UInt64])
  func sameAsScan(seed: UInt64) throws {
    var random = Random(state: seed)
    let fleet = try FleetFixture()
    let log = try Log(fleet)
    let history = PurgeHistory(log.file)
    var scopes: [RemovalScope] = []
    var results: [Bool] = []
    for _ in 0..<3000 {
      if Bool.random(using: &random) {
        scopes.append(try Self.scope(&random))
        try log.append(scopes.last!, number: UInt64(scopes.count))
      }
      let key = try #require(RequestKey(urlString: Self.key(&random)))
      let number = scopes.count - min(scopes.count, Int.random(in: 0..<20, using: &random))
      let groups = [["g"], ["g", "h"], []].randomElement(using: &random)!
      let isEquivalent = Bool.random(using: &random)
      let isCovered = scopes[number...].contains { scope in
        if case .since = scope { return true }
        if scope.covers(key: key.bytes, storedAt: .distantFuture, groups: { groups }) { return true }
        return isEquivalent && scope.covers(key: key.searchSpace.bytes, storedAt: .distantFuture) { [] }
      }
      let last = try #require(log.file.lastAnnounced(inEpochOf: log.position))
      let mayCover = history.mayCover(
        key, after: UInt64(number), upTo: last, inEpoch: log.position.epochNumber, isEquivalent: isEquivalent
      ) { groups }
      #expect(mayCover == isCovered, "seed \(seed), key \(key), equivalent \(isEquivalent), number \(number)")
      results.append(isCovered)
    }
    #expect(results.contains(true) && results.contains(false))
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
      return history.mayCover(key, after: number, upTo: last, inEpoch: epoch, isEquivalent: false) { [] }
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
