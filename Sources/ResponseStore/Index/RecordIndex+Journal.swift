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
/// LMDB releases its write lock with the commit. The next holder of the lock applies the changes. Usually it is the
/// same process, which locks again at once. The number of the last commit shows whether the journal's transaction was
/// committed. A process that dies at any point leaves nothing undone.
extension RecordIndex {
  /// The maximum number of changes of a write transaction.
  var journalCapacity: Int { IndexLayout.journalCapacity(cellCount: cellCount) }

  /// Whether changes wait for the next holder of the write lock, or belong to the current transaction.
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
    self[IndexLayout.Word.journalSum] &+= Self.sum(ofChange: words)
    self[IndexLayout.Word.changeCount] = count + 1
    return true
  }

  private static func sum(ofChange words: UnsafePointer<Word>) -> UInt64 {
    (0..<IndexLayout.wordsPerChange).reduce(0) { sum, word in
      (sum ^ words[word].load(ordering: .relaxed)) &* 0x9E37_79B9_7F4A_7C15
    }
  }

  /// Returns the row to which the current or the last transaction moved a record, or that of the record replacing it.
  ///
  /// Returns nil if it did neither, or if the cells are already up to date. Any thread of any process can call it.
  func rowID(following rowID: UInt64) -> UInt64? {
    let count = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
    for number in 0..<Int(count) {
      let words = journal + number * IndexLayout.wordsPerChange
      guard words[2].load(ordering: .relaxed) & ~IndexLayout.moveFlag == rowID else { continue }
      let newRow = words[1].load(ordering: .relaxed)
      if newRow != 0 { return newRow }
    }
    return nil
  }

  /// The result of applying the journal at the start of a write transaction.
  enum Settlement {
    case done
    /// A change finds no free cell. After the index has grown, call ``settle(transactionID:with:)`` again to continue.
    case full
    /// The index does not match the last commit: it is older or belongs to other data.
    case foreign
    /// The journal, the cells that it changes, or words of the header are corrupt.
    case corrupt
  }

  /// Applies the journal of the last commit, or drops the journal of a transaction that was not committed.
  ///
  /// - Parameters:
  ///   - transactionID: The number of the write transaction that has begun.
  ///   - replacement: The index that is to replace this one, which receives the same changes.
  func settle(transactionID: UInt64, with replacement: IndexReplacement? = nil) -> Settlement {
    let count = Int(min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity)))
    let sum = self[IndexLayout.Word.journalSum]
    // A process may have died while it cleared the journal for this transaction.
    let isCleared = sum == Self.emptySum(transactionID)
    switch self[IndexLayout.Word.transaction] {
    case transactionID &- 1:
      guard isCleared || sum == journalSum(changeCount: count, of: transactionID &- 1), recoverChange() else {
        return .corrupt
      }
      if !isCleared {
        guard var number = appliedCount else { return .corrupt }
        while number < count {
          let settlement = applyChange(number, with: replacement)
          guard settlement == .done else { return settlement }
          number += 1
          appliedCount = number
        }
      }
    case transactionID:
      // A process may have died before it counted its last change.
      let isIntact = (count...min(count + 1, journalCapacity)).contains {
        sum == journalSum(changeCount: $0, of: transactionID)
      }
      guard isCleared || isIntact, recoverChange() else { return .corrupt }
    default:
      return .foreign
    }
    clearJournal(for: transactionID)
    return .done
  }

  /// The number of changes in the journal that were applied to the cells; nil if the word is corrupt.
  private var appliedCount: Int? {
    get { IndexLayout.CheckedNumber.number(in: self[IndexLayout.Word.appliedCount]).map { Int($0) } }
    set { self[IndexLayout.Word.appliedCount] = IndexLayout.CheckedNumber.word(UInt64(newValue ?? 0)) }
  }

  /// Skips the next change in the journal, for a record that finds no free cell.
  func skipChange() { appliedCount = (appliedCount ?? 0) + 1 }

  /// Begins the journal of a transaction.
  func clearJournal(for transactionID: UInt64) {
    self[IndexLayout.Word.journalSum] = Self.emptySum(transactionID)
    self[IndexLayout.Word.changeCount] = 0
    appliedCount = 0
    self[IndexLayout.Word.transaction] = transactionID
  }

  /// The sum of a journal without changes.
  private static func emptySum(_ transactionID: UInt64) -> UInt64 { (transactionID &+ 1) &* 0xD6E8_FEB8_6659_FD93 }

  private func journalSum(changeCount: Int, of transactionID: UInt64) -> UInt64 {
    (0..<changeCount).reduce(Self.emptySum(transactionID)) {
      $0 &+ Self.sum(ofChange: journal + $1 * IndexLayout.wordsPerChange)
    }
  }

  private func applyChange(_ number: Int, with replacement: IndexReplacement?) -> Settlement {
    let words = journal + number * IndexLayout.wordsPerChange
    let newRow = words[1].load(ordering: .relaxed)
    let oldWord = words[2].load(ordering: .relaxed)
    let oldRow = oldWord & ~(IndexLayout.moveFlag | IndexLayout.rememberFlag)
    var entry = IndexEntry(tagWord: words[0].load(ordering: .relaxed), rowWord: newRow)
    defer { replacement?.follow(tag: entry.tag, oldRow: oldRow, newRow: newRow) }
    guard newRow != 0 else {
      // Moving the records behind it would hide from later checks that one of them is missing.
      guard isIntact(aroundHomeOf: entry.tag) else { return .corrupt }
      remove(tag: entry.tag, rowID: oldRow, remembering: oldWord & IndexLayout.rememberFlag != 0)
      return .done
    }
    entry.inflation = inflation
    guard oldRow != 0, let cell = cell(of: entry.tag, rowID: oldRow) else {
      guard self.cell(of: entry.tag, rowID: newRow) == nil else { return .done }
      entry.useCount = min(takeGhost(tag: entry.tag) + 1, IndexEntry.maximumUseCount)
      return insert(entry) ? .done : .full
    }
    let old = IndexEntry(tagWord: tagWord(cell), rowWord: rowWord(cell))
    let isMove = oldWord & IndexLayout.moveFlag != 0
    entry.useCount = isMove ? old.useCount : min(old.useCount + 1, IndexEntry.maximumUseCount)
    if isMove { entry.inflation = old.inflation }
    return replace(rowID: oldRow, with: entry) ? .done : .full
  }
}
