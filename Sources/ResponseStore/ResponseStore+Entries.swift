import FoundationEssentials
import HTTPCaching
import LMDB

/// What the store tells of an entry without its body.
public struct StoredEntry: Sendable {
  /// The record's number; higher is newer.
  public let rowID: UInt64
  /// What the response answers.
  public let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  /// When it was stored.
  public let storedAt: Date
  /// Date, age and lifetime.
  public let facts: FreshnessFacts
  /// The header fields by which its variant was chosen.
  public let varyNames: [String]
  /// The body's size in bytes.
  public let bodyByteCount: Int
}

extension ResponseStore {
  /// Calls `body` with each committed entry, oldest first, until it answers false. What is stored or removed meanwhile
  /// may or may not be seen. Nothing is held between two calls, so `body` may take its time.
  ///
  /// - Complexity: O(entries).
  public func forEachEntry(_ body: (StoredEntry) -> Bool) {
    guard isUsable else { return }
    var next: UInt64 = 0
    while true {
      let batch: [StoredEntry]
      do {
        batch = try entries(from: next, limit: 256)
      } catch {
        readFailed(error)
        return
      }
      guard let last = batch.last else { return }
      next = last.rowID + 1
      for entry in batch where !body(entry) { return }
    }
  }

  private func entries(from start: UInt64, limit: Int) throws(LMDBError) -> [StoredEntry] {
    try file.environment.read { (transaction) throws(LMDBError) in
      let purges = try removals.purges(in: transaction)
      var entries: [StoredEntry] = []
      try file.heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        var more = try cursor.seek(atOrAfter: start)
        while more, entries.count < limit {
          let rowID = try cursor.checkedKey()
          let entry = try cursor.withValue { (record) throws(LMDBError) in
            record.withUnsafeBytes { record -> StoredEntry? in
              guard let layout = HeadLayout(record), layout.hasRightChecksum else { return nil }
              guard !purges.contains(where: { $0.covers(rowID: rowID, layout: layout) }) else { return nil }
              return StoredEntry(
                rowID: rowID, key: RequestKey(storedBytes: [UInt8](layout.key)), status: layout.status,
                storedAt: layout.storedAt, facts: layout.facts,
                varyNames: FieldCoding.decodeVary(layout.vary).selectors.map(\.name),
                bodyByteCount: layout.bodyByteCount)
            }
          }
          if let entry { entries.append(entry) }
          more = try cursor.next()
        }
      }
      return entries
    }
  }
}
