import CacheModel
import FoundationEssentials

/// The keys of `meta`.
enum MetaKey {
  static let format = Array("format".utf8)
  static let counters = Array("counters".utf8)
  /// The prefix of tombstones, followed by the sequence number in the removal log, and for a soft removal by its kind
  /// and time.
  static let tombstonePrefix = Array("purge/".utf8)
  /// The progress of a sweep, which deletes or marks the records that tombstones cover.
  static let sweep = Array("sweep".utf8)
  /// The prefix of bodies that several transactions write or delete, followed by the body's ID.
  static let partialPrefix = Array("partial/".utf8)

  static func tombstone(_ sequence: UInt64, _ mode: RemovalMode) -> [UInt8] {
    let key = tombstonePrefix + bigEndian(sequence)
    guard case .soft(let date) = mode else { return key }
    return key + [softKind] + bigEndian(date.timeIntervalSinceReferenceDate.bitPattern)
  }

  /// Returns the mode of the removal with this key.
  static func mode(ofTombstone key: [UInt8]) -> RemovalMode {
    let start = tombstonePrefix.count + 8
    guard key.count == start + 9, key[start] == softKind,
      let bits = number(in: Array(key[start...]), after: [softKind])
    else { return .hard }
    return .soft(at: Date(timeIntervalSinceReferenceDate: Double(bitPattern: bits)))
  }

  private static let softKind: UInt8 = 1

  static func partial(_ bodyID: UInt64) -> [UInt8] {
    partialPrefix + bigEndian(bodyID)
  }

  /// Returns the number after a prefix.
  static func number(in key: [UInt8], after prefix: [UInt8]) -> UInt64? {
    guard key.starts(with: prefix), key.count >= prefix.count + 8 else { return nil }
    return key[prefix.count..<(prefix.count + 8)].reduce(0) { $0 << 8 | UInt64($1) }
  }

  private static func bigEndian<T: FixedWidthInteger>(_ value: T) -> [UInt8] {
    withUnsafeBytes(of: value.bigEndian) { Array($0) }
  }
}
