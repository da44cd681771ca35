import CacheModel
import Foundation
import HTTPCaching
import Testing

@Suite("The index of removals")
struct RemovalIndexTests {
  private static func key(_ random: inout SeededGenerator) throws -> RequestKey {
    let host = ["a.example", "b.example"].randomElement(using: &random)!
    let path = (0..<Int.random(in: 1...3, using: &random)).map { _ in ["x", "yy"].randomElement(using: &random)! }
    let query = ["", "", "?u=1", "?u=2"].randomElement(using: &random)!
    let partition = ["", "", "tenant"].randomElement(using: &random)!
    return try #require(
      RequestKey(urlString: "https://\(host)/" + path.joined(separator: "/") + query, partition: partition))
  }

  /// A key of a response, or of a key space, for a URL.
  private static func anyKey(_ random: inout SeededGenerator) throws -> RequestKey {
    let key = try key(&random)
    switch Int.random(in: 0..<8, using: &random) {
    case 0: return key.urlSpace
    case 1: return key.searchSpace
    case 2: return key.inURLSpace(nonce: "n", method: "QUERY", RequestKey.Member(content: ("00ff", 3)))
    case 3: return key.inURLSpace(nonce: "n", method: "GET", RequestKey.Member(user: "ab"))
    case 4:
      return key.equivalent(nonce: "n", user: nil, maximumByteCount: { $0 }) { url, output in
        output.update(fromContentsOf: url)
      }
    default: return key
    }
  }

  private static func scope(_ random: inout SeededGenerator) throws -> RemovalScope {
    let key = try anyKey(&random)
    let url = try #require(URL(string: key.urlString))
    let long = key.bytes + [UInt8](repeating: 120, count: 600)
    switch Int.random(in: 0..<200, using: &random) {
    case 0: return .everything
    case 1: return .nothing
    case 2..<6: return .since(Date(timeIntervalSinceReferenceDate: Double(Int.random(in: 50..<70, using: &random))))
    case 6: return .host("b.example")
    case 7..<20:
      let origin = Bool.random(using: &random) ? url : nil
      let names = [["cache-groups"], ["xkey"], ["labels", "xkey"]].randomElement(using: &random)!
      let tag = ["g", "h", "t", String(repeating: "t", count: 600)].randomElement(using: &random)!
      return try #require(RemovalScope.tag(tag, in: names, ofOrigin: origin)).abbreviated
    case 20..<70: return try #require(.group(["g", "h", ""].randomElement(using: &random)!, ofOrigin: url))
    case 70: return try #require(.group(String(repeating: "g", count: 600), ofOrigin: url))
    case 71..<90: return .key(key.bytes)
    case 90..<110: return .resource(key)
    case 112..<120: return try #require(.urlPrefix(url))
    case 110: return RemovalScope.prefix(long).abbreviated
    case 111: return RemovalScope.key(long).abbreviated
    default: return try #require(.target(of: url))
    }
  }

  @Test("The index has the effect that a comparison with each removal has", arguments: [1, 2, 3] as [UInt64])
  func sameAsComparison(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    var index = RemovalIndex(after: 100, capacity: 4000)
    var removals: [Removal] = []
    var effects: Set<RemovalEffect> = []
    for _ in 0..<3000 {
      let date = Date(timeIntervalSinceReferenceDate: Double(Int.random(in: 0..<100, using: &random)))
      let isHard = Int.random(in: 0..<3, using: &random) == 0
      removals.append(Removal(try Self.scope(&random), isHard ? .removed : .stale(since: date)))
      index.append(removals.last!)
      let key = try Self.anyKey(&random).bytes
      let count = min(removals.count, Int.random(in: 0..<60, using: &random))
      let groups = ["\"g\"", "\"g\", \"h\"", String(repeating: "g", count: 600)].randomElement(using: &random)!
      let fields = [nil, HeaderFields(), HeaderFields([("Cache-Groups", groups)]), ["xkey": "t u"]].randomElement(
        using: &random)!
      let storedAt = Date(timeIntervalSinceReferenceDate: 60)
      let expected = removals.suffix(count).filter { $0.scope.covers(key: key, storedAt: storedAt) { fields } }
        .reduce(RemovalEffect.none) { $0.combined(with: $1.effect) }
      let number = index.last - UInt64(count)
      let effect = index.effect(after: number, on: key, storedAt: storedAt) { fields }
      #expect(
        effect == expected, "seed \(seed), removals \(removals.suffix(count)), key \(RequestKey(storedBytes: key))")
      effects.insert(effect)
    }
    #expect(effects.contains(.none) && effects.contains(.removed) && effects.count > 20)
  }

  @Test("Forgotten removals count as hard ones of everything, and the others keep their effect")
  func forgotten() throws {
    let key = try #require(RequestKey(urlString: "https://a.example/")).bytes
    func effect(_ index: RemovalIndex, after number: UInt64) -> RemovalEffect {
      index.effect(after: number, on: key, storedAt: .now) { HeaderFields() }
    }
    var index = RemovalIndex(after: 10, capacity: 100)
    index.append(Removal(.host("a.example")))
    for number in 12...110 as ClosedRange<UInt64> { index.append(Removal(.host("\(number).example"))) }
    #expect(effect(index, after: 9) == .removed && effect(index, after: 10) == .removed)
    #expect(effect(index, after: 11) == .none)
    // The capacity is reached, so half of them is forgotten.
    index.append(Removal(.host("a.example"), .stale(since: .distantPast)))
    #expect(index.last == 111)
    #expect(effect(index, after: 59) == .removed && effect(index, after: 60) == .stale(since: .distantPast))
    #expect(effect(index, after: 111) == .none)
    index.forget(upTo: 200)
    #expect(index.last == 200 && effect(index, after: 199) == .removed && effect(index, after: 200) == .none)
  }

  @Test("A lookup reads the fields of a response only after a removal by tag, and once for any number of them")
  func fieldsAreReadOnce() throws {
    let key = try #require(RequestKey(urlString: "https://a.example/")).bytes
    var index = RemovalIndex(after: 0, capacity: 4000)
    var readCount = 0
    func effect() -> RemovalEffect {
      index.effect(after: 0, on: key, storedAt: .now) {
        readCount += 1
        return ["xkey": "product-42 list"]
      }
    }
    for number in 0..<100 { index.append(Removal(.host("\(number).example"))) }
    #expect(effect() == .none && readCount == 0)
    for number in 100..<3000 { index.append(Removal(try #require(.tag("product-\(number)", in: ["xkey"])))) }
    #expect(effect() == .none && readCount == 1)
    index.append(Removal(try #require(.tag("product-42", in: ["Cache-Tag", "xkey"])), .stale(since: .distantPast)))
    #expect(effect() == .stale(since: .distantPast))
  }
}
