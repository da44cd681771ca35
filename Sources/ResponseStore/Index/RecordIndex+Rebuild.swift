/// What a step of a rebuild came to.
enum RebuildProgress {
  case done
  /// There are more records to add.
  case unfinished
  /// A record found no place. The index must grow, or records be evicted, before the next step.
  case full
}

/// How far a rebuild has come: behind which record it goes on, and in which order.
enum RebuildPosition: Equatable {
  /// Rows from the newest to the oldest; those from this row ID on have been added.
  case rows(below: UInt64)
  /// Records in the order of storing, the latest first; those from this time and row ID on have been added.
  case dates(time: UInt64, rowID: UInt64)

  /// Before the latest record.
  static let newestDate = RebuildPosition.dates(time: .max, rowID: .max)
}

/// Rebuilding in bounded steps, each in a write transaction behind lookups and stores.
///
/// The file says how far it has come, so any process can go on. While a rebuild lasts, a key may be stored again whose older
/// record is not in the index: so there may be two rows of one key. The newer one must be added first; the older one is
/// deleted when it is met. So rows that were stored while an index was incomplete are added from the newest to the oldest.
/// All others may be added in any order, and come in that of storing, which is much less to read. In this order no lookup
/// finds the older row, whenever a process dies and whenever a rebuild begins again. While it lasts, a newer row must not be
/// deleted without the older ones: removals keep their marks, and eviction takes the lowest row IDs first.
extension RecordIndex {
  /// Where the rebuild goes on; nil when every record is in the index.
  var rebuildPosition: RebuildPosition? {
    switch self[IndexLayout.Word.rebuildStage] {
    case 0: nil
    case 1: .rows(below: self[IndexLayout.Word.rebuildRow])
    default: .dates(time: self[IndexLayout.Word.rebuildTime], rowID: self[IndexLayout.Word.rebuildRow])
    }
  }

  /// Notes how far a rebuild has come. A process that dies between two words leaves a position that is no further.
  func setRebuildPosition(_ position: RebuildPosition?) {
    switch position {
    case nil:
      self[IndexLayout.Word.rebuildStage] = 0
    case .rows(let rowID):
      if self[IndexLayout.Word.rebuildStage] != 1 {
        self[IndexLayout.Word.rebuildRow] = .max
        self[IndexLayout.Word.rebuildStage] = 1
      }
      self[IndexLayout.Word.rebuildRow] = rowID
    case .dates(let time, let rowID):
      self[IndexLayout.Word.rebuildRow] = .max
      if self[IndexLayout.Word.rebuildStage] != 2 {
        self[IndexLayout.Word.rebuildTime] = .max
        self[IndexLayout.Word.rebuildStage] = 2
      }
      self[IndexLayout.Word.rebuildTime] = time
      self[IndexLayout.Word.rebuildRow] = rowID
    }
  }

  /// Adds records of the database.
  ///
  /// - Parameters:
  ///   - limit: How many at most.
  ///   - recordBehind: The next record behind a position, and the position behind that record; nil when all have been met.
  ///   - areSameResponse: Whether two rows hold the same key and variant.
  ///   - remove: Deletes a record in the transaction under way.
  /// - Returns: ``RebuildProgress/done`` when all have been met; the caller takes the position away, when nothing is left.
  func rebuild<Failure: Error>(
    limit: Int, recordBehind: (RebuildPosition) throws(Failure) -> (entry: IndexEntry, next: RebuildPosition)?,
    areSameResponse: (UInt64, UInt64) throws(Failure) -> Bool, remove: (UInt64) throws(Failure) -> Void
  ) throws(Failure) -> RebuildProgress {
    guard var position = rebuildPosition else { return .done }
    // The progress is noted once, at the end of the step: whoever repeats a step finds what was added.
    defer { if position != rebuildPosition { setRebuildPosition(position) } }
    for _ in 0..<limit {
      guard let (entry, next) = try recordBehind(position) else { return .done }
      if try newerRow(than: entry, areSameResponse) != nil {
        try remove(entry.rowID)
        // Not behind the deleted row: its deletion is not committed yet.
        return .unfinished
      }
      guard insert(entry) else { return .full }
      position = next
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
