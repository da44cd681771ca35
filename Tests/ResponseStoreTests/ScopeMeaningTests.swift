import CacheModel
import Foundation
import HTTPCaching
import ResponseStore
import Testing

/// The meaning of removal scopes, which programs of one storage format share on a directory.
@Suite("Meaning of removal scopes")
struct ScopeMeaningTests {
  /// The version of the storage format, and a digest of what each scope covers.
  ///
  /// If the digest differs, a program that was built before understands a removal in another way. Raise the version of
  /// the storage format with the digest. The fleet's log has the same scopes: see `RemovalScope.covers`.
  private static let recorded = (version: 8 as UInt32, digest: "1ec79473d3f4f150dbed471b096718b6")

  private static let keys: [[UInt8]] = {
    let urls = [
      "http://a.example/", "http://a.example/p", "http://a.example/p?", "http://a.example/p?x=1",
      "http://a.example/p?x=2",
      "http://a.example/p/q?x=1", "http://a.example/pq", "https://a.example/p", "http://a.example:81/p",
      "http://b.a.example/p",
      "http://a.example/p?x=1&" + String(repeating: "y", count: 600),
      "http://a.example/" + String(repeating: "z", count: 600) + "?x=1",
    ]
    return urls.flatMap { url in
      ["", "tenant"].flatMap { partition -> [[UInt8]] in
        guard let key = RequestKey(urlString: url, partition: partition) else { return [] }
        let user = RequestKey.Member(user: "ab-cd")
        let query = RequestKey.Member(content: ("00ff", 3), user: nil)
        let equivalent = key.equivalent(nonce: "n", user: nil, maximumByteCount: { $0 }) { url, output in
          // Without the query.
          let end = url.firstIndex(of: UInt8(ascii: "?")) ?? url.count
          return output.update(fromContentsOf: url[..<end])
        }
        let others = [
          key.inURLSpace(nonce: "n", method: "GET", user), key.inURLSpace(nonce: "n", method: "QUERY", query),
          equivalent,
          RequestKey(urlString: url, method: "POST", partition: partition),
        ]
        return (key.withSpaces + others.compactMap { $0 }).map(\.bytes)
      }
    }
  }()

  private static func scopes() throws -> [RemovalScope] {
    let keyed = keys.flatMap { key -> [RemovalScope] in
      [.key(key), .resource(key), .target(key), .prefix(Array(key.dropLast(3)))]
    }
    let origin = try #require(URL(string: "http://a.example/"))
    let (long, names) = (String(repeating: "g", count: 600), ["Cache-Groups", "xkey", "Labels"])
    let tags = [
      RemovalScope.group("g", ofOrigin: origin), .group(long, ofOrigin: origin), .group("t", ofOrigin: origin),
      .tag("g", in: names), .tag("t", in: names, ofOrigin: origin), .tag("t", in: ["xkey"]), .tag("t", in: ["other"]),
      .tag("l", in: names), .tag(long, in: names), .tag("l", in: (0..<60).map { "Labels-\($0)" }),
      .tag("l", in: (0..<60).map { "Labels-\($0)" }, ofOrigin: origin),
    ]
    let dates = [0.0, 100, 101].map { RemovalScope.since(Date(timeIntervalSinceReferenceDate: $0)) }
    return keyed + tags.compactMap { $0 } + dates + [.everything, .host("a.example"), .nothing]
  }

  /// Returns what scopes cover, after they were written to the log and read again.
  private static func coverage() throws -> [UInt8] {
    try scopes().flatMap { scope -> [UInt8] in
      let encoded = Removal(scope).encoded
      #expect(encoded.count <= Removal.maximumByteCount - 8, "with the time of a soft removal")
      let decoded = try #require(encoded.withUnsafeBytes { Removal(encoded: $0) }).scope
      #expect(decoded == scope.abbreviated)
      return keys.map { key in
        let fields: HeaderFields = [
          "Cache-Groups": "\"g\", \"\(String(repeating: "g", count: 600))\"", "xkey": "s t", "labels": "k,l",
        ]
        let isCovered = decoded.covers(key: key, storedAt: Date(timeIntervalSinceReferenceDate: 100)) { fields }
        return isCovered ? 1 : 0
      }
    }
  }

  @Test("What each scope covers changes only with the version of the storage format")
  func meaning() throws {
    let coverage = try Self.coverage()
    #expect(coverage.contains(1) && coverage.contains(0))
    let digest = coverage.withUnsafeBytes { XXHash.digest128($0) }
    let text = String(digest.high, radix: 16) + String(digest.low, radix: 16)
    #expect(
      Self.recorded.version == StorageFormat.version && Self.recorded.digest == text,
      "now: version \(StorageFormat.version), digest \(text)")
  }

  @Test("A removal has its scope, effect and time after encoding, and one of an unknown kind removes everything")
  func encoding() throws {
    func decode(_ bytes: [UInt8]) -> Removal? { bytes.withUnsafeBytes { Removal(encoded: $0) } }
    let time = Date(timeIntervalSinceReferenceDate: 1.5)
    for effect in [RemovalEffect.removed, .stale(since: time), .suspect] {
      let removal = Removal(.host("a.example"), effect)
      #expect(decode(removal.encoded) == removal)
      // Of a later version.
      #expect(decode(Removal(.everything, effect).encoded.dropLast() + [200, 1]) == Removal(.everything, effect))
    }
    #expect(decode([200, 1, 2, 3]) == Removal(.everything))
    #expect(decode([]) == nil && decode([0]) == nil && decode([1, 2, 3]) == nil)
  }

  @Test("A resource is one URL in one partition, with its users, queries and equivalent URLs, and no other URL")
  func resource() throws {
    let key = try #require(RequestKey(urlString: "http://a.example/p?x=1"))
    func covers(_ other: RequestKey) -> Bool {
      RemovalScope.resource(key).covers(key: other.bytes, storedAt: .now) { nil }
    }
    let user = RequestKey.Member(user: "ab-cd")
    #expect(key.withSpaces.allSatisfy(covers))
    #expect(covers(key.inURLSpace(nonce: "n", method: "GET", user)))
    for other in ["http://a.example/p", "http://a.example/p?x=2", "http://a.example/p?x=1&y", "http://a.example/p/x=1"]
    {
      let other = try #require(RequestKey(urlString: other))
      #expect(!covers(other) && !covers(other.urlSpace), "\(other)")
      #expect(!covers(other.inURLSpace(nonce: "n", method: "GET", user)))
    }
    // The space of the path, from any of its URLs.
    #expect(covers(try #require(RequestKey(urlString: "http://a.example/p")).searchSpace))
    #expect(!covers(try #require(RequestKey(urlString: "http://a.example/p/q?x=1")).searchSpace))
    let tenant = try #require(RequestKey(urlString: "http://a.example/p?x=1", partition: "t"))
    #expect(!tenant.withSpaces.contains(where: covers))
  }
}
