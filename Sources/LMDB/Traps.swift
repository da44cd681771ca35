/// Mistakes of the caller end the process with a sentence. Not by `precondition`, which is silent in release builds.
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

/// Called when a table meets a transaction of another environment.
@usableFromInline @inline(never)
func trapForeignTransaction() -> Never {
  fatalError("LMDB: this table belongs to another environment than the transaction.")
}

/// Called when something is written while a closure looks at stored bytes.
@usableFromInline @inline(never)
func trapWriteDuringBorrow() -> Never {
  fatalError("LMDB: a write within a closure that borrows stored bytes of the same transaction would move those bytes.")
}

/// Called when a cursor that stands nowhere is asked for its entry.
@usableFromInline @inline(never)
func trapUnpositionedCursor() -> Never {
  fatalError("LMDB: the cursor stands on no entry; move it, and look at what the move returned.")
}

/// Called when an entry is to be removed without a write transaction.
@usableFromInline @inline(never)
func trapRemoveInReadTransaction() -> Never {
  fatalError("LMDB: remove() was called on a cursor of a read transaction; open the cursor in a write transaction.")
}

/// Called when room of a negative size is to be reserved.
@usableFromInline @inline(never)
func trapNegativeByteCount() -> Never {
  fatalError("LMDB: a byte count must not be negative.")
}
