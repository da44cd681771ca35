/// The keys of `meta`.
enum MetaKey {
  static let format = Array("format".utf8)
  static let counters = Array("counters".utf8)
  /// The prefix of tombstones, followed by the sequence number in the removal log.
  static let tombstonePrefix = Array("purge/".utf8)
  /// The progress of a sweep, which deletes or marks the records that tombstones cover.
  static let sweep = Array("sweep".utf8)
  /// The prefix of bodies that several transactions write or delete, followed by the body's ID.
  static let partialPrefix = Array("partial/".utf8)

  static func tombstone(_ sequence: UInt64) -> [UInt8] {
    tombstonePrefix + bigEndian(sequence)
  }

  static func partial(_ bodyID: UInt64) -> [UInt8] {
    partialPrefix + bigEndian(bodyID)
  }

  static func number(in key: [UInt8], after prefix: [UInt8]) -> UInt64? {
    guard key.starts(with: prefix), key.count >= prefix.count + 8 else { return nil }
    return key[prefix.count..<(prefix.count + 8)].reduce(0) { $0 << 8 | UInt64($1) }
  }

  private static func bigEndian<T: FixedWidthInteger>(_ value: T) -> [UInt8] {
    withUnsafeBytes(of: value.bigEndian) { Array($0) }
  }
}
