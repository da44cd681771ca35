/// A change that a write transaction makes to the records.
enum IndexChange: Equatable {
  /// A new record. It can replace one of the same key and variant, whose use count it inherits.
  case insert(IndexEntry, replacing: UInt64? = nil)
  /// A record moves to another row.
  case move(IndexEntry, from: UInt64)
  /// A record is deleted. With `remembering`, its use count is kept as a ghost.
  case remove(tag: UInt64, rowID: UInt64, remembering: Bool = false)
}

/// The journal: the changes of a write transaction, written before the commit and applied after it.
///
/// No cell therefore ever names an uncommitted row.
///
/// The process that has committed applies the changes before it lets the next writer in. If it dies before, the next
/// writer applies them: the number of the last commit shows whether the journal's transaction was committed.
extension RecordIndex {
  /// The maximum number of changes of a write transaction.
  var journalCapacity: Int { IndexLayout.journalCapacity(cellCount: cellCount) }

  /// Whether changes of the current or the last transaction are not applied yet.
  var hasJournal: Bool { self[IndexLayout.Word.changeCount] > 0 }

  /// Records a change of the current write transaction.
  ///
  /// If it returns false, the transaction must not commit: the journal is full, or the row ID does not fit into a cell.
  func note(_ change: IndexChange) -> Bool {
    let count = self[IndexLayout.Word.changeCount]
    let (tagWord, newRow, oldRow): (UInt64, UInt64, UInt64) =
      switch change {
      case .insert(let entry, let replaced): (entry.tagWord, entry.rowID, replaced ?? 0)
      case .move(let entry, let old): (entry.tagWord, entry.rowID, old | IndexLayout.moveFlag)
      case .remove(let tag, let rowID, let isRemembered):
        (tag << 24, 0, rowID | (isRemembered ? IndexLayout.rememberFlag : 0))
      }
    guard count < journalCapacity, newRow <= IndexEntry.maximumRowID else { return false }
    let words = journal + Int(count) * IndexLayout.wordsPerChange
    words[0].store(tagWord, ordering: .relaxed)
    words[1].store(newRow, ordering: .relaxed)
    words[2].store(oldRow, ordering: .relaxed)
    self[IndexLayout.Word.changeCount] = count + 1
    return true
  }

  /// Returns the row to which the current or the last transaction moved a record, or that of the record replacing it.
  ///
  /// Returns nil if it did neither, or if the cells are already up to date. Any thread of any process can call it.
  func rowID(following rowID: UInt64) -> UInt64? {
    for number in 0..<Int(self[IndexLayout.Word.changeCount]) {
      let words = journal + number * IndexLayout.wordsPerChange
      guard words[2].load(ordering: .relaxed) & ~IndexLayout.moveFlag == rowID else { continue }
      let newRow = words[1].load(ordering: .relaxed)
      if newRow != 0 { return newRow }
    }
    return nil
  }

  /// Whether the cells have the records of a commit, so that no journal is left to apply. Any thread can call it.
  func isUpToDate(withCommit transactionID: UInt64) -> Bool {
    let transaction = self[IndexLayout.Word.transaction]
    // The journal of a later transaction was not committed.
    return transaction == transactionID + 1 || (transaction == transactionID && !hasJournal)
  }

  /// Applies the journal of the last commit, or drops the journal of a transaction that was not committed.
  ///
  /// - Parameter transactionID: The number of the write transaction that has begun.
  /// - Returns: False if the index does not match the last commit: it is older, or belongs to other data.
  func settle(transactionID: UInt64) -> Bool {
    let isCommitted = self[IndexLayout.Word.transaction] == transactionID &- 1
    guard isCommitted || self[IndexLayout.Word.transaction] == transactionID else { return false }
    // A process was killed during a change.
    freeInvalidCell()
    if isCommitted {
      let count = self[IndexLayout.Word.changeCount]
      while case let number = self[IndexLayout.Word.appliedCount], number < count {
        guard applyChange(Int(number)) else { return false }
        self[IndexLayout.Word.appliedCount] = number + 1
      }
    }
    clearJournal(for: transactionID)
    return true
  }

  /// Begins the journal of a transaction. In this order of the words, a killed process leaves an empty journal.
  func clearJournal(for transactionID: UInt64) {
    self[IndexLayout.Word.changeCount] = 0
    self[IndexLayout.Word.appliedCount] = 0
    self[IndexLayout.Word.transaction] = transactionID
  }

  /// Applies a change to the cells, unless that was done. Returns false if there is no free cell.
  private func applyChange(_ number: Int) -> Bool {
    let words = journal + number * IndexLayout.wordsPerChange
    let newRow = words[1].load(ordering: .relaxed)
    let oldWord = words[2].load(ordering: .relaxed)
    let oldRow = oldWord & ~(IndexLayout.moveFlag | IndexLayout.rememberFlag)
    var entry = IndexEntry(tagWord: words[0].load(ordering: .relaxed), rowWord: newRow)
    guard newRow != 0 else {
      remove(tag: entry.tag, rowID: oldRow, remembering: oldWord & IndexLayout.rememberFlag != 0)
      return true
    }
    entry.inflation = inflation
    guard oldRow != 0, let cell = cell(of: entry.tag, rowID: oldRow) else {
      guard self.cell(of: entry.tag, rowID: newRow) == nil else { return true }
      entry.useCount = min(takeGhost(tag: entry.tag) + 1, IndexEntry.maximumUseCount)
      return insert(entry)
    }
    let old = self.entry(in: cell)
    let isMove = oldWord & IndexLayout.moveFlag != 0
    entry.useCount = isMove ? old.useCount : min(old.useCount + 1, IndexEntry.maximumUseCount)
    if isMove { entry.inflation = old.inflation }
    return replace(rowID: oldRow, with: entry)
  }
}
