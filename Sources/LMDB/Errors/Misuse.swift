/// A programming error of the caller, with the message of its trap.
@usableFromInline
enum Misuse: String {
  case mapByteCountNotPositive = "the map size must be positive."
  case maximumReadersOutOfRange = "the number of readers must be in 1...65535."
  case maximumTablesOutOfRange = "the number of tables must be in 0...32765."
  case nestedWrite =
    "write(_:) was called within another write(_:) of the same thread; an environment has one writer."
  case resizeInTransaction =
    "setMapByteCount(_:) was called within a transaction of the same thread; it waits for all to end."
  case foreignTransaction = "this table belongs to another environment than the transaction."
  case writeDuringBorrow =
    "a write within a closure that borrows stored bytes of the same transaction would move those bytes."
  case unpositionedCursor = "the cursor is at no entry; move it, and look at what the move returned."
  case removeInReadTransaction =
    "remove() was called on a cursor of a read transaction; open the cursor in a write transaction."
  case negativeByteCount = "a byte count must not be negative."
}

/// Traps with a message. `precondition` would be silent in release builds.
@usableFromInline @inline(never)
func trap(_ misuse: Misuse) -> Never {
  fatalError("LMDB: \(misuse.rawValue)")
}
