import CacheModel
import FoundationEssentials
import HTTPCaching

/// A removal in force that is not finished: in the removal log, or a row of `meta`.
///
/// It hides the covered records until they are deleted, or makes them stale until they are marked.
struct Tombstone: Sendable, Equatable {
  /// The sequence number in the removal log. Records stored under this or a higher number are not covered.
  var sequence: UInt64
  var scope: RemovalScope
  var mode = RemovalMode.hard
  /// The last row ID that can be covered. No record and no other tombstone has it, so tombstones are in its order.
  var lastRowID: UInt64
  /// The key of its row in `meta`; empty until the row exists.
  var metaKey: [UInt8] = []

  func covers(rowID: UInt64, layout: RecordHeaderView) -> Bool {
    rowID <= lastRowID && layout.removalSequence < sequence
      && scope.covers(key: layout.key, storedAt: layout.updatedAt) {
        CacheGroups.groups(of: FieldCoding.decodeFields(layout.fields))
      }
  }
}

/// The effect of tombstones on a record.
enum TombstoneCoverage {
  case none
  /// Soft ones cover it.
  case stale
  /// A hard one covers it.
  case hidden
}

extension [Tombstone] {
  /// Whether a hard tombstone covers a record. A record that cannot be parsed counts as covered.
  func hide(rowID: UInt64, _ head: RecordHeaderView?) -> Bool {
    contains { tombstone in
      tombstone.mode == .hard
        && (head.map { tombstone.covers(rowID: rowID, layout: $0) } ?? (rowID <= tombstone.lastRowID))
    }
  }

  /// Returns the fate of a record's use count if a hard tombstone covers the record; otherwise nil.
  func fate(rowID: UInt64, _ head: RecordHeaderView?) -> UseCountFate? { hide(rowID: rowID, head) ? .forget : nil }

  /// The effect of the tombstones on a record.
  ///
  /// Not inlined, to keep the lookup small: it calls this only if there are tombstones.
  @inline(never)
  func coverage(rowID: UInt64, _ head: RecordHeaderView) -> TombstoneCoverage {
    var coverage = TombstoneCoverage.none
    for tombstone in self where tombstone.covers(rowID: rowID, layout: head) {
      if tombstone.mode == .hard { return .hidden }
      coverage = .stale
    }
    return coverage
  }

  /// The time of the earliest soft tombstone that covers a record; nil if there is none.
  func softTime(rowID: UInt64, _ head: RecordHeaderView) -> Date? {
    lazy.filter { $0.mode != .hard && $0.covers(rowID: rowID, layout: head) }.compactMap(\.mode.softTime).min()
  }
}
