/// A change that a write transaction makes to the records.
enum IndexChange: Equatable {
  /// A new record; in the place of another of the same key and variant, whose uses it takes over.
  case insert(IndexEntry, replacing: UInt64? = nil)
  /// A record gets another row.
  case move(IndexEntry, from: UInt64)
  /// A record is deleted; with `remembering` its use count is kept for its return.
  case remove(tag: UInt64, rowID: UInt64, remembering: Bool = false)
}

/// The journal: what a write transaction changes stands in the index file before the transaction commits, and is carried out
/// after it, so that no slot ever names a row that is not committed.
///
/// LMDB gives its write lock up with the commit. So the changes are carried out by whoever has the lock next: mostly the same
/// process, which takes it again at once, else another one. The number of the last commit tells whether the transaction of
/// the journal is committed. A process that dies at any point leaves nothing undone.
extension RecordIndex {
  /// The number of changes that a write transaction can note.
  var journalCapacity: Int { IndexLayout.journalCapacity(slotCount: slotCount) }

  /// Whether changes wait for the next holder of the write lock; they may be those of a transaction under way.
  var hasJournal: Bool { self[IndexLayout.Word.changeCount] > 0 }

  /// Notes a change of the write transaction under way. The transaction must not commit if it returns false: the journal
  /// is full, or the row ID is beyond what a slot holds.
  func note(_ change: IndexChange) -> Bool {
    let count = self[IndexLayout.Word.changeCount]
    let (facts, newRow, oldRow): (UInt64, UInt64, UInt64) =
      switch change {
      case .insert(let entry, let replaced): (entry.facts, entry.rowID, replaced ?? 0)
      case .move(let entry, let old): (entry.facts, entry.rowID, old | IndexLayout.moveFlag)
      case .remove(let tag, let rowID, let isRemembered):
        (tag << 24, 0, rowID | (isRemembered ? IndexLayout.rememberFlag : 0))
      }
    guard count < journalCapacity, newRow <= IndexEntry.maximumRowID else { return false }
    let words = journal + Int(count) * IndexLayout.wordsPerChange
    words[0].store(facts, ordering: .relaxed)
    words[1].store(newRow, ordering: .relaxed)
    words[2].store(oldRow, ordering: .relaxed)
    self[IndexLayout.Word.changeCount] = count + 1
    return true
  }

  /// The new row of a record that the transaction under way, or the last one, has moved; nil if it has not, or if the slots tell
  /// already. From any thread of any process.
  func rowID(movedFrom rowID: UInt64) -> UInt64? {
    let count = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
    for number in 0..<Int(count) {
      let words = journal + number * IndexLayout.wordsPerChange
      if words[2].load(ordering: .relaxed) == rowID | IndexLayout.moveFlag { return words[1].load(ordering: .relaxed) }
    }
    return nil
  }

  /// What came of the journal at the beginning of a write transaction.
  enum Settlement {
    case done
    /// A change finds no place; after the index has grown, settling goes on where it stopped.
    case full
    /// The index does not continue the last commit: it is older, or of other data.
    case foreign
  }

  /// Carries out the journal of the last commit, or drops that of a transaction that was not committed.
  ///
  /// - Parameter transactionID: The number of the write transaction that has begun.
  func settle(transactionID: UInt64) -> Settlement {
    switch self[IndexLayout.Word.transaction] {
    case transactionID &- 1:
      freeVoidSlot()
      let count = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
      var number = self[IndexLayout.Word.carriedOutCount]
      while number < count {
        if !carryOut(Int(number)) { return .full }
        number += 1
        self[IndexLayout.Word.carriedOutCount] = number
      }
    case transactionID:
      freeVoidSlot()
    default:
      return .foreign
    }
    self[IndexLayout.Word.changeCount] = 0
    self[IndexLayout.Word.carriedOutCount] = 0
    self[IndexLayout.Word.transaction] = transactionID
    return .done
  }

  private func carryOut(_ number: Int) -> Bool {
    let words = journal + number * IndexLayout.wordsPerChange
    let newRow = words[1].load(ordering: .relaxed)
    let oldWord = words[2].load(ordering: .relaxed)
    let oldRow = oldWord & ~(IndexLayout.moveFlag | IndexLayout.rememberFlag)
    var entry = IndexEntry(facts: words[0].load(ordering: .relaxed), place: newRow)
    guard newRow != 0 else {
      remove(tag: entry.tag, rowID: oldRow, remembering: oldWord & IndexLayout.rememberFlag != 0)
      return true
    }
    entry.inflation = inflation
    guard oldRow != 0, let slot = slot(of: entry.tag, rowID: oldRow) else {
      guard self.slot(of: entry.tag, rowID: newRow) == nil else { return true }
      entry.useCount = min(takeGhost(tag: entry.tag) + 1, IndexEntry.maximumUseCount)
      return insert(entry)
    }
    let old = IndexEntry(facts: facts(slot), place: place(slot))
    let isMove = oldWord & IndexLayout.moveFlag != 0
    entry.useCount = isMove ? old.useCount : min(old.useCount + 1, IndexEntry.maximumUseCount)
    if isMove { entry.inflation = old.inflation }
    return replace(rowID: oldRow, with: entry)
  }
}
