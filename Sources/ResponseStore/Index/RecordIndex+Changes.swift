/// Changes of slots, by the holder of the database's write lock.
///
/// A process may be killed between any two words. One word (``IndexLayout/Word/occupancy``) therefore holds the record
/// count and the slot whose content is invalid: before a free slot is filled, and while a slot is freed. The next
/// process with the lock frees that slot. It then continues the journal with the interrupted change, which may be
/// complete.
///
/// The sum of the slots changes last. If a process is killed just before, the sum does not match, and the index is
/// rebuilt although its slots are valid.
extension RecordIndex {
  /// The number of slots in use, and the slot whose content is invalid.
  private var occupancy: (count: Int, invalidSlot: Int?) {
    get {
      let word = self[IndexLayout.Word.occupancy]
      let slot = Int(word & 0xffff_ffff) - 1
      return (Int(word >> 32), slot < 0 ? nil : slot)
    }
    set { self[IndexLayout.Word.occupancy] = UInt64(newValue.count) << 32 | UInt64((newValue.invalidSlot ?? -1) + 1) }
  }

  /// Returns the slot of a record.
  func slot(of tag: UInt64, rowID: UInt64) -> Int? {
    let home = home(of: tag)
    return (home..<firstFreeSlot(from: home)).first {
      IndexEntry.tag(inTagWord: tagWord($0)) == tag && IndexEntry.rowID(inRowWord: rowWord($0)) == rowID
    }
  }

  /// Inserts a record unless it exists. Returns false if there is no free slot.
  func insert(_ entry: IndexEntry) -> Bool {
    guard slot(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    let home = home(of: entry.tag)
    let slot = firstFreeSlot(from: home)
    guard slot < home + IndexLayout.maximumProbeLength else { return false }
    let count = occupancy.count
    occupancy = (count + 1, slot)
    setRowWord(slot, entry.rowWord)
    setTagWord(slot, entry.tagWord)
    occupancy = (count + 1, nil)
    self[IndexLayout.Word.identitySum] &+= entry.identity
    return true
  }

  /// Replaces a record under the same key with its successor. Returns false if the record does not exist.
  func replace(rowID: UInt64, with entry: IndexEntry) -> Bool {
    guard slot(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    guard let slot = slot(of: entry.tag, rowID: rowID) else { return false }
    let old = self.entry(in: slot)
    setRowWord(slot, entry.rowWord)
    setTagWord(slot, entry.tagWord)
    self[IndexLayout.Word.identitySum] &+= entry.identity &- old.identity
    return true
  }

  /// Removes a record if it exists. With `remembering`, keeps its use count as a ghost.
  func remove(tag: UInt64, rowID: UInt64, remembering: Bool = false) {
    guard let slot = slot(of: tag, rowID: rowID) else { return }
    let entry = entry(in: slot)
    if remembering { putGhost(tag: tag, useCount: entry.useCount) }
    occupancy.invalidSlot = slot
    freeInvalidSlot()
    self[IndexLayout.Word.identitySum] &-= entry.identity
  }

  /// Frees the slot whose content is invalid, if there is one.
  ///
  /// Records after it move forward, so that no record has a free slot between itself and its home.
  func freeInvalidSlot() {
    guard var slot = occupancy.invalidSlot, slot < allSlotCount else { return }
    var next = slot + 1
    while next < allSlotCount {
      let tagWord = tagWord(next)
      if tagWord == 0 { break }
      if home(of: IndexEntry.tag(inTagWord: tagWord)) <= slot {
        setRowWord(slot, rowWord(next))
        setTagWord(slot, tagWord)
        occupancy.invalidSlot = next
        slot = next
      }
      next += 1
    }
    setTagWord(slot, 0)
    occupancy = (max(occupancy.count - 1, 0), nil)
  }

  /// Copies everything except the sizes and the ghosts into an index that no other process sees yet.
  ///
  /// Returns false if the records do not fit. Ghosts are not needed: an index grows while it fills, before records are
  /// evicted.
  func copy(into other: RecordIndex) -> Bool {
    for word in [
      IndexLayout.Word.owner, IndexLayout.Word.boot, IndexLayout.Word.boot + 1, IndexLayout.Word.inflation,
      IndexLayout.Word.lastTombstone,
      IndexLayout.Word.transaction, IndexLayout.Word.changeCount, IndexLayout.Word.appliedCount,
      IndexLayout.Word.rebuildStage, IndexLayout.Word.rebuildRow, IndexLayout.Word.rebuildTime,
      IndexLayout.Word.identitySum,
    ] {
      other[word] = self[word]
    }
    let changeCount = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
    guard changeCount <= other.journalCapacity else { return false }
    let changeWordCount = Int(changeCount) * IndexLayout.wordsPerChange
    for word in 0..<changeWordCount {
      other.journal[word].store(journal[word].load(ordering: .relaxed), ordering: .relaxed)
    }
    var count = 0
    for slot in 0..<allSlotCount {
      let tagWord = tagWord(slot)
      guard tagWord != 0 else { continue }
      let home = other.home(of: IndexEntry.tag(inTagWord: tagWord))
      let copy = other.firstFreeSlot(from: home)
      guard copy < home + IndexLayout.maximumProbeLength else { return false }
      other.setRowWord(copy, self.rowWord(slot))
      other.setTagWord(copy, tagWord)
      count += 1
    }
    other.occupancy = (count, nil)
    return true
  }
}
