/// A larger or smaller index that takes over the records of the present one in steps.
///
/// Its file has another name until it is complete, so no other process sees it. Lookups and changes use the present
/// index meanwhile, and this process repeats each change of a record that was copied. A change by another process is
/// not repeated; ``hasEveryRecord`` detects it.
///
/// Uses that are counted after a record was copied are lost. The eviction thread therefore does not leave all copying to
/// new records, which may come slowly.
///
/// The holder of the database's write lock calls everything.
final class IndexReplacement {
  let old: RecordIndex
  let new: NewIndexFile
  /// The records whose home cells in the old index are below this one were copied.
  private var copiedHomeCount = 0

  init(of old: RecordIndex, by new: NewIndexFile) {
    (self.old, self.new) = (old, new)
  }

  /// The state after a step.
  enum Progress {
    case unfinished
    case done
    /// A record found no free cell in the new index.
    case full
    /// The old index is corrupt.
    case corrupt
  }

  /// Copies the records of the next home cells.
  func advance(homeCount: Int) -> Progress {
    let end = copiedHomeCount + min(homeCount, old.cellCount - copiedHomeCount)
    switch old.copyRecords(ofHomes: copiedHomeCount..<end, into: new.index) {
    case .done: copiedHomeCount = end
    case .full: return .full
    case .corrupt: return .corrupt
    }
    return end == old.cellCount ? .done : .unfinished
  }

  /// Repeats a change of the old index in the new one.
  ///
  /// - Parameters:
  ///   - oldRow: The row that the record had; 0 for none.
  ///   - newRow: The row that it has now; 0 for none.
  func follow(tag: UInt64, oldRow: UInt64, newRow: UInt64) {
    // Other records will be copied.
    guard old.home(of: tag) < copiedHomeCount else { return }
    if oldRow != 0 { new.index.remove(tag: tag, rowID: oldRow) }
    // If it finds no free cell, the count is wrong at the end.
    if newRow != 0, let cell = old.cell(of: tag, rowID: newRow) { _ = new.index.insert(old.entry(in: cell)) }
  }

  /// Whether the new index contains the records of the old one, and no other.
  var hasEveryRecord: Bool {
    new.index.recordCount == old.recordCount && new.index.identitySum == old.identitySum
  }
}
