import FoundationEssentials
import HTTPCaching
import ResponseStore

/// What is stored under a key: everything follows from the key's number and a version, so that whoever finds a response
/// can tell whether each byte of it is right.
struct Content {
  /// How many keys there are, and how many hosts they are spread over: each host's keys belong to one thread.
  let keyCount: Int
  let hostCount: Int
  /// The largest bodies: some are so large that they are removed piece by piece. Most are far smaller.
  let largestByteCount: Int

  /// - Parameter capacity: The store's.
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

  /// The body: a stream of numbers that begins at key and version.
  func body(_ key: Int, version: UInt64) -> Data {
    let byteCount = byteCount(key, version: version)
    var random = SeededRandom(UInt64(key) << 40 ^ version)
    let words = (0..<((byteCount + 7) / 8)).map { _ in random.next() }
    return words.withUnsafeBytes { Data($0.prefix(byteCount)) }
  }

  func response(_ key: Int, version: UInt64, at date: Date) -> NewResponse {
    NewResponse(
      key: requestKey(key), status: 200, fields: fields(key, version: version, update: 0),
      body: body(key, version: version), facts: Self.facts(at: date), vary: VarySelection(selectors: []))
  }

  func fields(_ key: Int, version: UInt64, update: UInt64) -> HTTPFields {
    HTTPFields([
      ("X-Key", "\(key)"), ("X-Version", "\(version)"), ("X-Update", "\(update)"),
      ("Cache-Groups", "\"g\(group(of: key))\""),
    ])
  }

  static func facts(at date: Date) -> FreshnessFacts {
    FreshnessFacts(responseTime: date, initialAge: 0, lifetime: 1e9, date: date)
  }

  /// The version that a found response has; nil if it is not, byte for byte, what was stored for the key.
  func version(of found: StoredResponse, key: Int) -> UInt64? {
    let fields = found.fields
    guard found.key == requestKey(key), found.status == 200, fields["x-key"] == "\(key)",
      let version = fields["x-version"].flatMap({ UInt64($0) }),
      let update = fields["x-update"].flatMap({ UInt64($0) }),
      fields == self.fields(key, version: version, update: update),
      found.body == body(key, version: version)
    else { return nil }
    return version
  }
}
