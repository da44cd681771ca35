import CacheModel
import FoundationEssentials
import HTTPCaching

/// A removal in force that is not finished, with the records that it covers: in the removal log, or a row of `meta`.
///
/// It hides the covered records until they are deleted, or makes them stale until they are marked.
struct Tombstone: Sendable, Equatable {
  var removal: Removal
  /// The sequence number in the removal log. Records stored under this or a higher number are not covered.
  var sequence = UInt64.max
  /// The last row ID that can be covered. No record and no other tombstone has it, so tombstones are in its order.
  var lastRowID = UInt64.max

  /// - Parameter fields: Returns the fields of the record.
  func covers(rowID: UInt64, layout: RecordHeaderView, fields: () -> HeaderFields) -> Bool {
    rowID <= lastRowID && layout.removalSequence < sequence
      && removal.scope.covers(key: layout.key, storedAt: layout.updatedAt, fields: fields)
  }
}

extension [Tombstone] {
  /// The effect of the tombstones on a record.
  ///
  /// Not inlined, to keep the lookup small: it calls this only if there are tombstones.
  @inline(never)
  func effect(rowID: UInt64, _ head: RecordHeaderView) -> RemovalEffect {
    var effect = RemovalEffect.none
    // Decoding takes longer than comparing with a tombstone.
    lazy var fields = FieldCoding.decodeFields(head.fields)
    for tombstone in self where effect != .removed {
      guard tombstone.covers(rowID: rowID, layout: head, fields: { fields }) else { continue }
      effect = effect.combined(with: tombstone.removal.effect)
    }
    return effect
  }

  /// Whether a hard tombstone covers a record. A record that cannot be parsed counts as covered.
  func hide(rowID: UInt64, _ head: RecordHeaderView?) -> Bool {
    lazy var fields = head.map { FieldCoding.decodeFields($0.fields) } ?? HeaderFields()
    return contains { tombstone in
      tombstone.removal.isHard
        && (head.map { tombstone.covers(rowID: rowID, layout: $0) { fields } } ?? (rowID <= tombstone.lastRowID))
    }
  }

  /// Returns the fate of a record's use count if a hard tombstone covers the record; otherwise nil.
  func fate(rowID: UInt64, _ head: RecordHeaderView?) -> UseCountFate? { hide(rowID: rowID, head) ? .forget : nil }
}
