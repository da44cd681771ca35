internal import CLMDB
internal import Synchronization

extension Environment {
  /// The table of a name, which is created if it is missing.
  ///
  /// The first call for a name opens the table, in a read transaction of its own if it is there, else in a write
  /// transaction; it traps within a write transaction of the same thread. Later calls cost a lock and a look-up. Open all
  /// tables right after the environment: a transaction that began before a table was opened does not know it.
  /// - Parameters:
  ///   - name: 1 to 511 bytes of UTF-8 without a zero.
  ///   - key: how keys are laid out in bytes. It must be the same whenever the table is opened; nothing checks that.
  ///   - value: how values are laid out in bytes.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/tablesFull``, ``LMDBError/Code/mapFull``,
  ///   ``LMDBError/Code/badValueSize`` for a name that is not as said, and what
  ///   ``read(_:)`` and ``write(_:)`` throw. `mdb_dbi_open`.
  public func table<Key: KeyCodec, Value: ValueCodec>(
    _ name: String, key: Key.Type, value: Value.Type
  ) throws(LMDBError) -> Table<Key, Value> {
    if let table = try existingTable(name, key: key, value: value) { return table }
    return Table(handle: try createTable(name), serial: serial)
  }

  /// The table of a name, or nil if it is missing. As ``table(_:key:value:)``, but it never writes, and so waits for nobody
  /// who does.
  public func existingTable<Key: KeyCodec, Value: ValueCodec>(
    _ name: String, key: Key.Type, value: Value.Type
  ) throws(LMDBError) -> Table<Key, Value>? {
    guard let handle = try existingTableHandle(name) else { return nil }
    return Table(handle: handle, serial: serial)
  }

  private func existingTableHandle(_ name: String) throws(LMDBError) -> UInt32? {
    if let known = knownTableHandle(name) { return known }
    if writingThread.load(ordering: .relaxed) == ReaderSlot.currentThread, !isForked { Trap.nestedWrite() }
    // C would read the name up to there, and two names would be one table.
    guard !name.utf8.contains(0) else { throw LMDBError(code: .badValueSize, function: "mdb_dbi_open") }
    let lease = try beginRead()
    // LMDB wants no two transactions to open tables at the same moment.
    tablesLock.lock()
    defer { tablesLock.unlock() }
    var handle: UInt32 = 0
    let rc = mdb_dbi_open(lease.transaction, name, 0, &handle)
    // A handle stays only when its transaction is committed, which for one that reads is nothing but its end. It does not stay in
    // the pool: who only opens tables keeps no reader slot.
    lease.slot.pointee.transaction = nil
    if rc == 0 { mdb_txn_commit(lease.transaction) } else { mdb_txn_abort(lease.transaction) }
    slots.release(lease.slot)
    if rc == MDB_NOTFOUND { return nil }
    guard rc == 0 else { throw LMDBError(rc, "mdb_dbi_open") }
    note(handle, for: name)
    return handle
  }

  private func createTable(_ name: String) throws(LMDBError) -> UInt32 {
    var isLocked = false
    defer { if isLocked { tablesLock.unlock() } }
    let handle = try write { (transaction) throws(LMDBError) in
      tablesLock.lock()
      isLocked = true
      var handle: UInt32 = 0
      let rc = mdb_dbi_open(transaction.handle.pointer, name, UInt32(MDB_CREATE), &handle)
      guard rc == 0 else { throw LMDBError(rc, "mdb_dbi_open") }
      return handle
    }
    // Noted only now: were the transaction aborted, LMDB would close the handle. It is never closed by us, as others
    // may be using it.
    note(handle, for: name)
    return handle
  }

  /// With `tablesLock`.
  private func note(_ handle: UInt32, for name: String) {
    tableHandles.pointee[name] = handle
    if handle >= tableHandleEnd.load(ordering: .relaxed) { tableHandleEnd.store(handle + 1, ordering: .releasing) }
  }

  private func knownTableHandle(_ name: String) -> UInt32? {
    tablesLock.lock()
    defer { tablesLock.unlock() }
    return tableHandles.pointee[name]
  }

  /// How many pages hold live data: of all tables opened, of the free list and of the table of tables, and the two meta
  /// pages.
  ///
  /// Within a write transaction it includes what that has changed so far. Unlike the file's length it also falls. Costs
  /// some nanoseconds for each table. `mdb_stat`.
  /// - Parameter transaction: one of this environment, begun after the last table was opened.
  /// - Throws: ``LMDBError``.
  @inlinable
  public func livePageCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    try livePageCount(transaction.handle)
  }

  @usableFromInline
  func livePageCount(_ handle: TransactionHandle) throws(LMDBError) -> Int {
    if handle.serial != serial { trapForeignTransaction() }
    var pageCount = 2
    for table in 0..<tableHandleEnd.load(ordering: .acquiring) {
      pageCount += try TableStatistics(handle, table).pageCount
    }
    // The transaction keeps the map where it is.
    var information = MDB_envinfo()
    mdb_env_info(pointer, &information)
    guard pageCount <= information.me_mapsize / pageByteCount else {
      throw LMDBError(code: .corrupted, function: "mdb_stat")
    }
    return pageCount
  }

  /// Numbers about LMDB's list of pages that can be used again: each entry is a transaction that freed some. `mdb_stat`.
  ///
  /// - Throws: ``LMDBError``.
  public func freeListStatistics(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> TableStatistics {
    let handle = transaction.handle
    if handle.serial != serial { trapForeignTransaction() }
    return try TableStatistics(handle, 0)
  }

  /// Numbers about the table of tables: each entry is a table, whether opened here or not. `mdb_stat`.
  ///
  /// - Throws: ``LMDBError``.
  public func mainTableStatistics(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> TableStatistics {
    let handle = transaction.handle
    if handle.serial != serial { trapForeignTransaction() }
    return try TableStatistics(handle, 1)
  }
}
