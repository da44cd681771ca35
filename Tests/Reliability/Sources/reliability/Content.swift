import CacheModel
import FoundationEssentials
import HTTPCaching
import ResponseStore
import StoreContract

/// The responses of the tests. Every byte follows from a key's number and a version, so that readers can check it.
struct Content {
  /// The number of keys, and the number of hosts over which they are spread. One thread stores the keys of one host.
  let keyCount: Int
  let hostCount: Int
  /// The maximum body size. Some bodies are so large that they are deleted in steps; most are far smaller.
  let largestByteCount: Int

  /// - Parameter capacity: The capacity of the store in bytes.
  init(keyCount: Int, hostCount: Int, capacity: Int) {
    self.keyCount = keyCount
    self.hostCount = hostCount
    largestByteCount = capacity < 4 << 20 ? 400_000 : 1_600_000
  }

  static let prefixCount = 4
  static let groupCount = 3

  func host(of key: Int) -> Int { key % hostCount }
  func prefix(of key: Int) -> Int { key / hostCount % Self.prefixCount }
  func group(of key: Int) -> Int { key / hostCount % Self.groupCount }

  static func hostName(_ host: Int) -> String { "h\(host).example" }

  func prefixURL(host: Int, prefix: Int) -> URL { URL(string: "http://\(Self.hostName(host))/p\(prefix)/")! }

  func requestKey(_ key: Int) -> RequestKey {
    RequestKey(urlString: "http://\(Self.hostName(host(of: key)))/p\(prefix(of: key))/\(key)?q=\(key)")!
  }

  func byteCount(_ key: Int, version: UInt64) -> Int {
    let dice = SeededRandom.mixed(UInt64(key) &* 1_000_003 &+ version)
    let spread = Int(dice >> 32)
    switch dice % 100 {
    case 0..<3: return 0
    case 3..<70: return 16 + spread % 1800
    case 70..<90: return 1000 + spread % 8000
    case 90..<98: return 16_368 * (1 + spread % 2) + spread % 3 - 1
    default:
      let most = dice / 100 % 8 == 0 ? largestByteCount : 400_000
      return 60_000 + spread % (most - 60_000)
    }
  }

  /// Returns the body, a sequence of numbers that is seeded with the key and the version.
  func body(_ key: Int, version: UInt64) -> Data {
    bytes(key, number: version, byteCount: byteCount(key, version: version))
  }

  /// Returns a large body for a response that is stored in pieces.
  ///
  /// - Parameter number: The position at which the body began.
  func arrivingBody(_ key: Int, number: UInt64) -> Data {
    bytes(key, number: number, byteCount: 70_000 + Int(SeededRandom.mixed(number) >> 32) % (largestByteCount - 70_000))
  }

  private func bytes(_ key: Int, number: UInt64, byteCount: Int) -> Data {
    var random = SeededRandom(UInt64(key) << 40 ^ number)
    let words = (0..<((byteCount + 7) / 8)).map { _ in random.next() }
    return words.withUnsafeBytes { Data($0.prefix(byteCount)) }
  }

  func response(_ key: Int, version: UInt64, at date: Date) -> KeyedResponse {
    KeyedResponse(
      key: requestKey(key),
      response: CacheableResponse(
        status: 200, fields: fields(key, version: version, update: 0), body: body(key, version: version),
        freshness: Self.freshness(at: date), vary: VaryKey(fields: [])))
  }

  /// - Parameter bodyNumber: The number of a body that arrives in pieces; nil for others.
  func fields(_ key: Int, version: UInt64, update: UInt64, bodyNumber: UInt64? = nil) -> HeaderFields {
    HeaderFields(
      [
        ("X-Key", "\(key)"), ("X-Version", "\(version)"), ("X-Update", "\(update)"),
        ("Cache-Groups", "\"g\(group(of: key))\""),
      ] + (bodyNumber.map { [("X-Body", "\($0)")] } ?? []))
  }

  /// Returns the number of a response's body if it was stored in pieces.
  func bodyNumber(in fields: HeaderFields) -> UInt64? { fields["x-body"].flatMap { UInt64($0) } }

  static func freshness(at date: Date) -> FreshnessInfo {
    FreshnessInfo(responseTime: date, initialAge: 0, lifetime: 1e9, date: date)
  }

  /// Returns the version of a found response, or nil if it differs in any byte from the one stored for the key.
  func version(of found: StoredResponse, key: Int) -> UInt64? { answer(of: found, key: key)?.version }

  /// Returns what the ledger judges of a found response, or nil if it differs in any byte from the one stored for the
  /// key.
  func answer(of found: StoredResponse, key: Int) -> Ledger.FoundResponse? {
    let fields = found.fields
    let bodyNumber = bodyNumber(in: fields)
    guard found.key == requestKey(key), found.status == 200, fields["x-key"] == "\(key)",
      let version = fields["x-version"].flatMap({ UInt64($0) }),
      let update = fields["x-update"].flatMap({ UInt64($0) }),
      fields == self.fields(key, version: version, update: update, bodyNumber: bodyNumber),
      found.body == bodyNumber.map({ arrivingBody(key, number: $0) }) ?? body(key, version: version)
    else { return nil }
    return Ledger.FoundResponse(
      version: version, revision: update, isSoftPurged: found.freshness.flags.contains(.softPurged))
  }
}
