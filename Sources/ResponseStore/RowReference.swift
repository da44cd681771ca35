import Synchronization

/// The row that a response stands in, once it does: shared by a response on its way to the disk and its updates.
final class RowReference: Sendable {
  private let value: Atomic<UInt64>

  init(_ rowID: UInt64 = 0) {
    value = Atomic(rowID)
  }

  /// 0 until the record is committed.
  var rowID: UInt64 { value.load(ordering: .relaxed) }

  func set(_ rowID: UInt64) {
    value.store(rowID, ordering: .relaxed)
  }

  /// Whether both lead to one row.
  func isSame(as other: RowReference) -> Bool {
    self === other || (rowID != 0 && rowID == other.rowID)
  }
}
