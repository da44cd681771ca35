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

  /// The leaf in which a key would stand, what is free in it, and between which others.
  public struct LeafRoom {
    /// The page's number, by which two keys' leaves are told apart.
    public var pageNumber: Int
    /// An entry takes ``Table/leafByteCount(keyByteCount:valueByteCount:)`` of them.
    public var freeByteCount: Int
    /// The next key below; nil if there is none, or its bytes are none of the codec's.
    public var below: Key.Value?
    /// The next key above, or the key itself if it is there.
    public var above: Key.Value?
  }

  /// Finds out how much room there is where keys would be stored. Of two leaves between which a key lies it gives the fuller one.
  ///
  /// - Parameters:
  ///   - keys: best in ascending order, so that neighbours find their pages warm.
  ///   - transaction: A read transaction, in which every page lies in the map.
  /// - Returns: one for each key; nothing free for an empty table.
  /// - Throws: ``LMDBError``. `mdb_cursor_get`.
  /// - Complexity: O(log n) for each key.
  public func leafRooms(
    for keys: [Key.Value], in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [LeafRoom] {
    let cursor = try openCursor(transaction.handle.pointer, handle)
    defer { closeCursor(cursor) }
    let nowhere = UnsafeRawBufferPointer(start: nil, count: 0)
    var rooms: [LeafRoom] = []
    rooms.reserveCapacity(keys.count)
    for key in keys {
      let above = try Key.withEncoded(key) { (bytes) throws(LMDBError) in try moveCursor(cursor, .atOrAfter, bytes) }
      let below = try moveCursor(cursor, above == nil ? .last : .previous, nowhere)
      let leaves = [above, below].compactMap { $0.map { Self.leaf(of: $0) } }
      let (pageNumber, freeByteCount) = leaves.min { $0.freeByteCount < $1.freeByteCount } ?? (0, 0)
      rooms.append(
        LeafRoom(
          pageNumber: pageNumber, freeByteCount: freeByteCount, below: below.flatMap { Key.decode($0.key.bytes) },
          above: above.flatMap { Key.decode($0.key.bytes) }))
    }
    return rooms
  }

  /// What an entry takes of a leaf, if the value is not so large that it gets pages of its own.
  public static func leafByteCount(keyByteCount: Int, valueByteCount: Int) -> Int {
    // A header of eight bytes, an even length, and two bytes in the page's list.
    ((8 + keyByteCount + valueByteCount + 1) & ~1) + 2
  }

  /// Reads the header of the page in the map that an entry's key lies in: its number, then at 12 and 14 where the free bytes
  /// begin and end.
  private static func leaf(of entry: CursorEntry) -> (pageNumber: Int, freeByteCount: Int) {
    let address = UInt(bitPattern: entry.key.baseAddress) & ~UInt(bitPattern: Int(getpagesize()) - 1)
    guard let header = UnsafeRawPointer(bitPattern: address) else { return (0, 0) }
    let start = header.load(fromByteOffset: 12, as: UInt16.self)
    let end = header.load(fromByteOffset: 14, as: UInt16.self)
    return (header.load(as: Int.self), max(Int(end) - Int(start), 0))
  }
}
