/// Changes of slots, by the holder of the database's write lock.
///
/// A process may be killed between any two words. So the slot whose content is void is noted, with the count of records, in
/// one word (``IndexLayout/Word/occupancy``): before a free slot is filled, and while a slot is being freed. Whoever gets the
/// lock next frees that slot, and then goes on with the journal at the change that was under way, which may find it done.
extension RecordIndex {
  /// Where slots are in use, and which of them has no valid content.
  private var occupancy: (count: Int, voidSlot: Int?) {
    get {
      let word = self[IndexLayout.Word.occupancy]
      let slot = Int(word & 0xffff_ffff) - 1
      return (Int(word >> 32), slot < 0 ? nil : slot)
    }
    set { self[IndexLayout.Word.occupancy] = UInt64(newValue.count) << 32 | UInt64((newValue.voidSlot ?? -1) + 1) }
  }

  /// The slot of a record.
  func slot(of tag: UInt64, rowID: UInt64) -> Int? {
    let home = home(of: tag)
    return (home..<firstFreeSlot(from: home)).first {
      IndexEntry.tag(inFacts: facts($0)) == tag && IndexEntry.rowID(inPlace: place($0)) == rowID
    }
  }

  /// Puts a record in; it may be there. False if there is no place for it.
  func insert(_ entry: IndexEntry) -> Bool {
    guard slot(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    let home = home(of: entry.tag)
    let slot = firstFreeSlot(from: home)
    guard slot < home + IndexLayout.maximumProbeLength else { return false }
    let count = occupancy.count
    occupancy = (count + 1, slot)
    setPlace(slot, entry.place)
    setFacts(slot, entry.facts)
    occupancy = (count + 1, nil)
    return true
  }

  /// Gives a record's slot to its successor under the same key; false if the record is not there.
  func replace(rowID: UInt64, with entry: IndexEntry) -> Bool {
    guard slot(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    guard let slot = slot(of: entry.tag, rowID: rowID) else { return false }
    setPlace(slot, entry.place)
    setFacts(slot, entry.facts)
    return true
  }

  /// Takes a record out, if it is there; with `remembering` its use count is kept as a ghost.
  func remove(tag: UInt64, rowID: UInt64, remembering: Bool = false) {
    guard let slot = slot(of: tag, rowID: rowID) else { return }
    if remembering { putGhost(tag: tag, useCount: IndexEntry(facts: facts(slot), place: 0).useCount) }
    occupancy.voidSlot = slot
    freeVoidSlot()
  }

  /// Frees the slot whose content is void, if there is one. Records behind it move up, so that none has a free slot between
  /// itself and its home.
  func freeVoidSlot() {
    guard var slot = occupancy.voidSlot, slot < allSlotCount else { return }
    var next = slot + 1
    while next < allSlotCount {
      let facts = facts(next)
      if facts == 0 { break }
      if home(of: IndexEntry.tag(inFacts: facts)) <= slot {
        setPlace(slot, place(next))
        setFacts(slot, facts)
        occupancy.voidSlot = next
        slot = next
      }
      next += 1
    }
    setFacts(slot, 0)
    occupancy = (max(occupancy.count - 1, 0), nil)
  }

  /// Copies everything but the sizes into a new file's index, which nobody else sees yet. False if it does not fit. Ghosts stay
  /// behind: an index grows while it fills, before records are evicted.
  func copy(into other: RecordIndex) -> Bool {
    for word in [
      IndexLayout.Word.owner, IndexLayout.Word.boot, IndexLayout.Word.boot + 1, IndexLayout.Word.inflation,
      IndexLayout.Word.lastMark,
      IndexLayout.Word.transaction, IndexLayout.Word.changeCount, IndexLayout.Word.carriedOutCount,
      IndexLayout.Word.rebuildStage, IndexLayout.Word.rebuildRow, IndexLayout.Word.rebuildTime,
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
      let facts = facts(slot)
      guard facts != 0 else { continue }
      let home = other.home(of: IndexEntry.tag(inFacts: facts))
      let place = other.firstFreeSlot(from: home)
      guard place < home + IndexLayout.maximumProbeLength else { return false }
      other.setPlace(place, self.place(slot))
      other.setFacts(place, facts)
      count += 1
    }
    other.occupancy = (count, nil)
    return true
  }
}
