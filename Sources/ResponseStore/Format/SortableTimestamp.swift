import FoundationEssentials

/// A `Date` as 64 bits whose unsigned order is the order of time.
///
/// Nothing is rounded, so "newer" on disk is exactly "newer" for `Date`.
enum SortableTimestamp {
  static func encode(_ date: Date) -> UInt64 {
    let bits = date.timeIntervalSinceReferenceDate.bitPattern
    return bits >> 63 == 0 ? bits | 1 << 63 : ~bits
  }

  static func decode(_ time: UInt64) -> Date {
    let bits = time >> 63 == 1 ? time & ~(1 << 63) : ~time
    return Date(timeIntervalSinceReferenceDate: Double(bitPattern: bits))
  }
}
