import Synchronization

/// Corruption that is found while the index is in use; see `RecordIndex+Sums.swift`.
///
/// The holder of the database's write lock calls everything unless stated otherwise.
extension IndexFile {
  /// Whether the cells are intact in which a record with this tag can be. If so, a record that is not found there is not
  /// in the index.
  ///
  /// If it returns false, the transaction must not commit. The next one begins with a new index.
  func isIntact(aroundHomeOf tag: UInt64) -> Bool {
    guard let index = loaded, !index.isIntact(aroundHomeOf: tag) else { return true }
    noteCorruption(of: index)
    return false
  }

  /// Whether an index is in use, and blocks of it are intact that did not match their sums when they were read without
  /// the write lock.
  func isIntact(_ index: RecordIndex, blocks: [Int]) -> Bool {
    guard loaded === index else { return false }
    guard blocks.allSatisfy({ index.isIntact(block: $0) }) else {
      noteCorruption(of: index)
      return false
    }
    return true
  }

  /// Whether all blocks of an index match their sums; nil if they changed during the check, or the index was replaced.
  ///
  /// Any thread can call it.
  /// - Parameter releasesResidentPages: See ``RecordIndex/isIntact(releasesResidentPages:)``.
  func isIntact(_ index: RecordIndex, releasesResidentPages: Bool = false) -> Bool? {
    let isIntact = index.isIntact(releasesResidentPages: releasesResidentPages)
    return current === index ? isIntact : nil
  }

  /// Makes the next transaction of any process discard an index.
  func noteCorruption(of index: RecordIndex) {
    index[IndexLayout.Word.transaction] = IndexLayout.noTransaction
    isFoundCorrupt.store(true, ordering: .relaxed)
  }

  /// Returns whether an index was found corrupt since the last call. Any thread can call it.
  func takeCorruption() -> Bool { isFoundCorrupt.exchange(false, ordering: .relaxed) }
}
