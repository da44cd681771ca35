import CacheModel
import FoundationEssentials
import HTTPCaching

/// The keys and responses of the contract test. Every byte of a response follows from its slot, version and revision.
///
/// A URL has four slots: two partitions, each with and without a `Vary` field. One host has so many that purges of it
/// leave a tombstone.
enum ContractContent {
  static let slotCount = 512
  static let hosts = ["a.example", "b.example", "c.b.example"]
  static let prefixCount = 3
  static let groupCount = 3
  static let tagCount = 5
  /// The fields with tags.
  static let tagFieldNames = ["Surrogate-Key", "Cache-Groups"]
  private static let firstSlots = [0, 320, 448]

  static func host(of slot: Int) -> Int { firstSlots.lastIndex { $0 <= slot } ?? 0 }
  /// The number of the URL on its host.
  private static func number(of slot: Int) -> Int { (slot - firstSlots[host(of: slot)]) / 4 }
  static func prefix(of slot: Int) -> Int { number(of: slot) % prefixCount }
  /// The cache group of the responses of a slot; 0 for none.
  static func group(of slot: Int) -> Int { (number(of: slot) / 2) % groupCount }

  /// The tag of the responses of a slot, which slots of all hosts have.
  static func tag(of slot: Int) -> Int { number(of: slot) % tagCount }

  static func prefixURL(host: Int, prefix: Int) -> URL { url("http://\(hosts[host])/p\(prefix)/") }

  /// The URL of a slot. Some are longer than the removal log's frames.
  static func url(of slot: Int) -> URL {
    let tail = number(of: slot) % 16 == 7 ? String(repeating: "x", count: 700) : ""
    return url("http://\(hosts[host(of: slot)])/p\(prefix(of: slot))/\(tail)\(number(of: slot))")
  }

  private static func url(_ text: String) -> URL {
    guard let url = URL(string: text) else { fatalError("no URL: \(text)") }
    return url
  }

  static func hasSameURL(_ slot: Int, _ other: Int) -> Bool { slot / 4 == other / 4 }
  static func hasSameKey(_ slot: Int, _ other: Int) -> Bool { slot / 2 == other / 2 }

  static func key(of slot: Int) -> RequestKey {
    guard let key = RequestKey(url: url(of: slot), partition: slot & 2 == 0 ? "" : "tenant") else {
      fatalError("no key of slot \(slot)")
    }
    return key
  }

  static func vary(of slot: Int) -> VaryKey {
    VaryKey(fields: slot % 2 == 0 ? [] : [VaryKey.Field(name: "accept-language", value: "de")])
  }

  // MARK: Responses

  /// The numbers that a response was made of, which its fields contain.
  struct Identity: Equatable {
    var slot: Int
    var version: UInt64
    /// The number that the bytes of the body follow from: the version, or for a body that arrived in pieces the
    /// position at which it began.
    var bodyNumber: UInt64
    /// The revision; 0 for a response that was not updated.
    var revision: UInt64 = 0
    var byteCount: Int
    /// The size of a field, which makes a record header small or large.
    var paddingByteCount = 0
  }

  static let bodyByteCounts = [0, 10, 300, 1500, 2100, 5000, 20_000, 70_000]
  static let paddingByteCounts = [0, 0, 0, 600, 3000]
  /// The size of a body that is written in several transactions.
  static let largeByteCount = 1_500_000

  static func fields(_ identity: Identity) -> HeaderFields {
    var fields = HeaderFields([
      ("X-Slot", "\(identity.slot)"), ("X-Version", "\(identity.version)"), ("X-Body", "\(identity.bodyNumber)"),
      ("X-Revision", "\(identity.revision)"), ("X-Size", "\(identity.byteCount)"),
      ("X-Padding", String(repeating: "+", count: identity.paddingByteCount)),
    ])
    fields.append(name: "Surrogate-Key", value: "every t\(tag(of: identity.slot))")
    let group = group(of: identity.slot)
    if group > 0 { fields.append(name: "Cache-Groups", value: "\"g\(group)\"") }
    return fields
  }

  static func body(_ identity: Identity) -> Data {
    body(number: identity.bodyNumber, slot: identity.slot, byteCount: identity.byteCount)
  }

  static func body(number: UInt64, slot: Int, byteCount: Int) -> Data {
    let seed = SeededRandom.mixed(UInt64(slot) << 40 ^ number)
    let start = Int(seed % UInt64(pool.count))
    var body = withUnsafeBytes(of: seed) { Data($0) }
    while body.count < byteCount {
      let from = body.count == 8 ? start : 0
      body.append(pool[from..<min(pool.count, from + byteCount - body.count)])
    }
    return body.prefix(byteCount)
  }

  /// Bytes to copy from: generating random bytes is slow in debug builds.
  private static let pool: Data = {
    var random = SeededRandom(42)
    let words = (0..<(1 << 14)).map { _ in random.next() }
    return words.withUnsafeBytes { Data($0) }
  }()

  static func freshness(at date: Date, lifetime: Double) -> FreshnessInfo {
    FreshnessInfo(responseTime: date, initialAge: 0, lifetime: lifetime, date: date)
  }

  /// Returns the identity of found bytes; nil if any byte differs from those that were stored for the slot.
  ///
  /// - Parameter body: Nil if the body cannot be read, because it was replaced meanwhile.
  static func identity(of fields: HeaderFields, status: Int, body: Data?, byteCount: Int, slot: Int) -> Identity? {
    func number(_ name: String) -> UInt64? { fields[name].flatMap { UInt64($0) } }
    guard status == 200, number("x-slot") == UInt64(slot), let version = number("x-version"),
      let bodyNumber = number("x-body"), let revision = number("x-revision"), number("x-size") == UInt64(byteCount),
      let padding = fields["x-padding"]
    else { return nil }
    let identity = Identity(
      slot: slot, version: version, bodyNumber: bodyNumber, revision: revision, byteCount: byteCount,
      paddingByteCount: padding.utf8.count)
    guard fields == self.fields(identity), body == nil || body == self.body(identity) else { return nil }
    return identity
  }
}
