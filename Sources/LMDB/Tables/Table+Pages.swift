internal import Glibc

extension Table {
  /// Returns one key of each leaf page whose number is at least `limit`, in key order.
  ///
  /// Storing an unchanged value under such a key makes LMDB copy its page to a free one, usually closer to the
  /// beginning of the file. That frees pages at the end of the file. Values in overflow pages stay in place, and a leaf
  /// with only such values is skipped.
  /// - Parameters:
  ///   - limit: The lowest page number to include.
  ///   - start: The bytes of the key to start at; nil for the first key.
  ///   - maximumCount: The maximum number of keys to return.
  ///   - transaction: A read transaction, in which every page is in the map.
  /// - Returns: The bytes of the keys, and the key to continue from; nil at the table's end.
  /// - Throws: ``LMDBError``. `mdb_cursor_get`.
  /// - Complexity: O(entries) from `start` on.
  public func firstKeysOfLeafPages(
    from limit: Int, startingAt start: [UInt8]?, maximumCount: Int, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> (keys: [[UInt8]], next: [UInt8]?) {
    let pageMask = UInt(bitPattern: Int(getpagesize()) - 1)
    var keys: [[UInt8]] = []
    var lastPage: UInt = 0
    let cursor = try openCursor(transaction.handle.pointer, handle)
    defer { closeCursor(cursor) }
    var entry: CursorEntry?
    if let start {
      entry = try start.withUnsafeBufferPointer { (bytes) throws(LMDBError) in
        try moveCursor(cursor, .atOrAfter, UnsafeRawBufferPointer(bytes))
      }
    } else {
      entry = try moveCursor(cursor, .first)
    }
    while let found = entry {
      let page = UInt(bitPattern: found.key.baseAddress) & ~pageMask
      // An empty value has no address of its own.
      let isInLeaf = found.value.isEmpty || UInt(bitPattern: found.value.baseAddress) & ~pageMask == page
      if page != lastPage, isInLeaf, let header = UnsafeRawPointer(bitPattern: page) {
        lastPage = page
        // A page begins with its number.
        if header.load(as: Int.self) >= limit {
          if keys.count == maximumCount { return (keys, [UInt8](found.key)) }
          keys.append([UInt8](found.key))
        }
      }
      entry = try moveCursor(cursor, .next)
    }
    return (keys, nil)
  }
}
