/// Traps for programming errors, with a message. `precondition` would be silent in release builds.
enum Trap {
  @inline(never)
  static func mapByteCountNotPositive() -> Never {
    fatalError("LMDB: the map size must be positive.")
  }

  @inline(never)
  static func maximumReadersOutOfRange() -> Never {
    fatalError("LMDB: the number of readers must be in 1...65535.")
  }

  @inline(never)
  static func maximumTablesOutOfRange() -> Never {
    fatalError("LMDB: the number of tables must be in 0...32765.")
  }

  @inline(never)
  static func outOfMemory() -> Never {
    fatalError("LMDB: the system has no memory for the reader slots of an environment.")
  }

  @inline(never)
  static func nestedWrite() -> Never {
    fatalError("LMDB: write(_:) was called within another write(_:) of the same thread; an environment has one writer.")
  }

  @inline(never)
  static func resizeInTransaction() -> Never {
    fatalError("LMDB: setMapByteCount(_:) was called within a transaction of the same thread; it waits for all to end.")
  }
}

/// Traps when a table is used with a transaction of another environment.
@usableFromInline @inline(never)
func trapForeignTransaction() -> Never {
  fatalError("LMDB: this table belongs to another environment than the transaction.")
}

/// Traps when a write happens while a closure borrows stored bytes.
@usableFromInline @inline(never)
func trapWriteDuringBorrow() -> Never {
  fatalError("LMDB: a write within a closure that borrows stored bytes of the same transaction would move those bytes.")
}

/// Traps when a cursor without a position is asked for its entry.
@usableFromInline @inline(never)
func trapUnpositionedCursor() -> Never {
  fatalError("LMDB: the cursor is at no entry; move it, and look at what the move returned.")
}

/// Traps when an entry is removed without a write transaction.
@usableFromInline @inline(never)
func trapRemoveInReadTransaction() -> Never {
  fatalError("LMDB: remove() was called on a cursor of a read transaction; open the cursor in a write transaction.")
}

/// Traps when the size of a reserved value is negative.
@usableFromInline @inline(never)
func trapNegativeByteCount() -> Never {
  fatalError("LMDB: a byte count must not be negative.")
}
