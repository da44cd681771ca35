import Foundation
import HTTPCaching
import ResponseStore

/// The responses that every peer stores: entry i has a URL, ten header fields, and a body that begins with i.
///
/// A smaller fixture is the beginning of a larger one. Bodies are slices of a pool of pseudorandom bytes: they do not
/// compress, and each can be checked.
struct Fixture: Sendable {
  let count: Int
  let bodyByteCount: Int
  /// Whether the URLs are in random order and from ten hosts in turn, like the requests of many users.
  let isScattered: Bool
  private var entries: Entries?

  init(count: Int, bodyByteCount: Int, isScattered: Bool = false) {
    self.count = count
    self.bodyByteCount = bodyByteCount
    self.isScattered = isScattered
  }

  /// Returns the fixture with all heads, bodies and responses in memory, for measurements that must not include their
  /// creation.
  func prepared() -> Fixture {
    var fixture = self
    fixture.entries = Entries(self)
    return fixture
  }

  private final class Entries: Sendable {
    let heads: [[UInt8]]
    let bodies: [Data]
    let responses: [KeyedResponse]

    init(_ fixture: Fixture) {
      heads = (0..<fixture.count).map { fixture.head($0) }
      bodies = (0..<fixture.count).map { fixture.body($0) }
      responses = (0..<fixture.count).map { fixture.response($0) }
    }
  }

  var name: String { "\(Self.name(ofByteCount: bodyByteCount)) x \(count.formatted)" }

  static func name(ofByteCount count: Int) -> String {
    count >= 1 << 20 ? "\(count >> 20) MB" : count >= 1 << 10 ? "\(count >> 10) KB" : "\(count) B"
  }

  static func host(_ number: Int) -> String { "assets\(number).example.com" }

  func url(_ index: Int) -> String {
    if isScattered {
      // Multiplication by an odd number is a permutation of the numbers below 2^32.
      return "http://\(Self.host(index % 10))/images/\(UInt32(truncatingIfNeeded: index) &* 0x9E37_79B1)/photo.webp"
    }
    let digits = String(index)
    return "http://assets.example.com/images/" + String(repeating: "0", count: 10 - digits.count) + digits
      + "/photo.webp"
  }

  func key(_ index: Int) -> RequestKey {
    guard let key = RequestKey(urlString: url(index)) else { fatalError("A fixture's URL has no key: \(url(index))") }
    return key
  }

  func fields(_ index: Int) -> [(String, String)] {
    [
      ("Content-Type", "image/webp"), ("Content-Length", String(bodyByteCount)),
      ("Date", Self.date), ("Cache-Control", "public, max-age=86400"),
      ("ETag", "\"5f3e-\(index)\""), ("Last-Modified", "Mon, 02 Nov 2026 08:30:00 GMT"), ("Server", "nginx/1.22.1"),
      ("Accept-Ranges", "bytes"), ("X-Request-Id", "0b8f7c1e-\(index)"),
      ("Strict-Transport-Security", "max-age=63072000"),
    ]
  }

  /// Returns status line and fields as text, for peers that store only bytes.
  func head(_ index: Int) -> [UInt8] {
    if let entries { return entries.heads[index] }
    var text = "HTTP/1.1 200 OK\r\n"
    for (name, value) in fields(index) { text += "\(name): \(value)\r\n" }
    return Array(text.utf8)
  }

  func body(_ index: Int) -> Data {
    if let entries { return entries.bodies[index] }
    var body = Data(count: bodyByteCount)
    body.withUnsafeMutableBytes { fillBody(index, $0) }
    return body
  }

  func fillBody(_ index: Int, _ body: UnsafeMutableRawBufferPointer) {
    let start = Self.poolOffset(index)
    Self.pool.withUnsafeBytes { pool in
      body.copyMemory(from: UnsafeRawBufferPointer(rebasing: pool[start..<(start + bodyByteCount)]))
    }
    body.storeBytes(of: UInt64(index), as: UInt64.self)
  }

  func response(_ index: Int) -> KeyedResponse {
    if let entries { return entries.responses[index] }
    return KeyedResponse(
      key: key(index),
      response: CacheableResponse(
        status: 200, fields: HeaderFields(fields(index)), body: body(index), freshness: Self.freshness,
        vary: VaryKey(fields: [])))
  }

  /// The date of this run. With a fixed date, the responses would be stale after a day.
  private static let date = HTTPDate.format(Date())

  static let freshness = FreshnessInfo(
    responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date(), staleWhileRevalidate: -1, staleIfError: -1,
    flags: [.strongETag, .lastModified])

  /// Traps if a body is not that of entry `index`.
  func check(_ body: UnsafeRawBufferPointer, _ index: Int, _ who: String) {
    let start = Self.poolOffset(index)
    let isRight = Self.pool.withUnsafeBytes { pool in
      body.count == bodyByteCount && body.loadUnaligned(as: UInt64.self) == UInt64(index)
        && memcmp(body.baseAddress! + 8, pool.baseAddress! + start + 8, bodyByteCount - 8) == 0
    }
    guard isRight else { fatalError("\(who) returned a wrong body for entry \(index) (\(body.count) bytes)") }
  }

  private static func poolOffset(_ index: Int) -> Int { index &* 64 & (1 << 20 - 1) }

  private static let pool: [UInt8] = {
    var random = SeededGenerator(seed: 42)
    return [UInt8]((0..<(1 << 19)).flatMap { _ in withUnsafeBytes(of: random.next()) { Array($0) } })
  }()
}

/// The keys of a fixture in one buffer, for the C baseline.
final class KeyBytes {
  var bytes: [UInt8] = []
  var offsets: [UInt32] = [0]

  init(_ fixture: Fixture) {
    for index in 0..<fixture.count {
      bytes += fixture.key(index).bytes
      offsets.append(UInt32(bytes.count))
    }
  }
}

extension SeededGenerator {
  /// Returns random numbers, the same for every peer.
  mutating func picks(_ count: Int, below bound: Int) -> [UInt32] {
    (0..<count).map { _ in UInt32(truncatingIfNeeded: next() % UInt64(bound)) }
  }
}

extension Int {
  /// The number with thousands separators: 1,000,000.
  var formatted: String {
    var text = String(self)
    var index = text.count - 3
    while index > 0 {
      text.insert(",", at: text.index(text.startIndex, offsetBy: index))
      index -= 3
    }
    return text
  }
}
