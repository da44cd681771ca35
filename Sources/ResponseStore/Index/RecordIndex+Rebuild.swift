/// What a step of a rebuild came to.
enum RebuildProgress {
  case done
  /// There are more records to add.
  case unfinished
  /// A record found no place. The index must grow, or records be evicted, before the next step.
  case full
}

/// Rebuilding in bounded steps, each in a write transaction behind lookups and stores.
///
/// The file says how far it has come, so any process can go on. Records are added from the newest to the oldest. While it
/// lasts, a key may be stored again whose older record is not in the index: so there may be two rows of one key. The newer
/// one is added first, and the older one is deleted when it is met. In this order no lookup finds the older one, whenever a
/// process dies and whenever a rebuild begins anew. While it lasts, a newer row must not be deleted without the older ones:
/// removals keep their marks, and eviction takes the lowest row IDs first.
extension RecordIndex {
  /// Adds records of the database.
  ///
  /// - Parameters:
  ///   - limit: How many at most.
  ///   - recordBelow: The record with the highest row ID below this one.
  ///   - areSameResponse: Whether two rows hold the same key and variant.
  ///   - remove: Deletes a record in the transaction under way.
  func rebuild<Failure: Error>(
    limit: Int, recordBelow: (UInt64) throws(Failure) -> IndexEntry?,
    areSameResponse: (UInt64, UInt64) throws(Failure) -> Bool, remove: (UInt64) throws(Failure) -> Void
  ) throws(Failure) -> RebuildProgress {
    var row = self[IndexLayout.Word.firstIndexedRow]
    // The progress is noted once, at the end of the step: whoever repeats a step finds what was added.
    defer { if row != self[IndexLayout.Word.firstIndexedRow] { self[IndexLayout.Word.firstIndexedRow] = row } }
    for _ in 0..<limit {
      if row <= 1 { return .done }
      guard let entry = try recordBelow(row) else {
        row = 1
        return .done
      }
      if try newerRow(than: entry, areSameResponse) != nil {
        try remove(entry.rowID)
        // Not below the deleted row: its deletion is not committed yet.
        row = entry.rowID + 1
        return .unfinished
      }
      guard insert(entry) else { return .full }
      row = entry.rowID
    }
    return .unfinished
  }

  private func newerRow<Failure: Error>(
    than entry: IndexEntry, _ areSameResponse: (UInt64, UInt64) throws(Failure) -> Bool
  ) throws(Failure) -> UInt64? {
    let home = home(of: entry.tag)
    for slot in home..<firstFreeSlot(from: home) where IndexEntry.tag(inFacts: facts(slot)) == entry.tag {
      let other = IndexEntry.rowID(inPlace: place(slot))
      if other > entry.rowID, try areSameResponse(entry.rowID, other) { return other }
    }
    return nil
  }
}
