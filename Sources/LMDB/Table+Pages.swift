internal import Glibc

extension Table {
  /// Finds the leaf pages that lie at page `limit` of the file or behind it: one key of each, in order.
  ///
  /// To store a value again under such a key, unchanged, has LMDB copy its page to a free one, mostly one further in
  /// front: so room at the file's end can be cleared. Values on pages of their own stay where they are, and a page with
  /// nothing else is left out.
  /// - Parameters:
  ///   - limit: The first page number that counts.
  ///   - start: The bytes of the key to begin at; nil for the first.
  ///   - maximumCount: How many keys are returned at most.
  ///   - transaction: A read transaction, in which every page lies in the map.
  /// - Returns: the keys' bytes, and where to go on; nil at the table's end.
  /// - Throws: ``LMDBError``. `mdb_cursor_get`.
  /// - Complexity: O(entries) from `start` on.
  public func keysOfLeafPages(
    from limit: Int, startingAt start: [UInt8]?, maximumCount: Int, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> (keys: [[UInt8]], next: [UInt8]?) {
    let pageMask = UInt(bitPattern: Int(getpagesize()) - 1)
    var keys: [[UInt8]] = []
    var lastPage: UInt = 0
    let nowhere = UnsafeRawBufferPointer(start: nil, count: 0)
    let cursor = try openCursor(transaction.handle.pointer, handle)
    defer { closeCursor(cursor) }
    var entry: CursorEntry?
    if let start {
      entry = try start.withUnsafeBufferPointer { (bytes) throws(LMDBError) in
        try moveCursor(cursor, .atOrAfter, UnsafeRawBufferPointer(bytes))
      }
    } else {
      entry = try moveCursor(cursor, .first, nowhere)
    }
    while let found = entry {
      let page = UInt(bitPattern: found.key.baseAddress) & ~pageMask
      // An empty value has no place of its own.
      let isWithin = found.value.isEmpty || UInt(bitPattern: found.value.baseAddress) & ~pageMask == page
      if page != lastPage, isWithin, let header = UnsafeRawPointer(bitPattern: page) {
        lastPage = page
        // A page begins with its number.
        if header.load(as: Int.self) >= limit {
          if keys.count == maximumCount { return (keys, [UInt8](found.key)) }
          keys.append([UInt8](found.key))
        }
      }
      entry = try moveCursor(cursor, .next, nowhere)
    }
    return (keys, nil)
  }
}
