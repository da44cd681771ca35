internal import CLMDB
internal import Synchronization

extension LMDBEnvironment {
  /// Returns a named table, and creates it if it does not exist.
  ///
  /// The first call for a name opens the table: in a read transaction if it exists, otherwise in a write transaction.
  /// It traps within a write transaction of the same thread. Later calls cost a lock and a dictionary lookup. Open all
  /// tables right after the environment: a transaction cannot use a table that was opened after it began.
  /// - Parameters:
  ///   - name: 1 to 511 bytes of UTF-8 without a zero.
  ///   - key: The key codec. Use the same one whenever the table is opened; nothing checks that.
  ///   - value: The value codec.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/tablesFull``, ``LMDBError/Code/mapFull``,
  ///   ``LMDBError/Code/badValueSize`` for an invalid name, and the errors of ``read(_:)`` and ``write(_:committed:)``.
  ///   `mdb_dbi_open`.
  public func table<Key: KeyCodec, Value: ValueCodec>(
    _ name: String, key: Key.Type, value: Value.Type
  ) throws(LMDBError) -> Table<Key, Value> {
    if let table = try existingTable(name, key: key, value: value) { return table }
    return Table(handle: try createTable(name), serial: serial)
  }

  /// Returns a named table like ``table(_:key:value:)``, or nil if it does not exist.
  ///
  /// Never writes or waits for writers.
  public func existingTable<Key: KeyCodec, Value: ValueCodec>(
    _ name: String, key: Key.Type, value: Value.Type
  ) throws(LMDBError) -> Table<Key, Value>? {
    guard let handle = try existingTableHandle(name) else { return nil }
    return Table(handle: handle, serial: serial)
  }

  private func existingTableHandle(_ name: String) throws(LMDBError) -> UInt32? {
    if let known = knownTableHandle(name) { return known }
    if writingThread.load(ordering: .relaxed) == ReaderSlot.currentThread, !isForked { trap(.nestedWrite) }
    // LMDB would read the name only up to the zero, so two names could mean one table.
    guard !name.utf8.contains(0) else { throw LMDBError(code: .badValueSize, function: "mdb_dbi_open") }
    let lease = try beginRead()
    // LMDB forbids two transactions from opening tables at the same time.
    tablesLock.lock()
    defer { tablesLock.unlock() }
    var handle: UInt32 = 0
    let rc = mdb_dbi_open(lease.transaction, name, 0, &handle)
    // LMDB keeps the handle only if the transaction commits, which has no other effect on a read transaction. The
    // transaction does not return to the pool, so that a process that only opens tables keeps no reader slot.
    lease.slot.pointee.transaction = nil
    if rc == 0 { mdb_txn_commit(lease.transaction) } else { mdb_txn_abort(lease.transaction) }
    slots.release(lease.slot)
    if rc == MDB_NOTFOUND { return nil }
    guard rc == 0 else { throw LMDBError(rc, "mdb_dbi_open") }
    record(handle, for: name)
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
    // Record the handle only now: if the transaction were aborted, LMDB would close the handle. This module never
    // closes handles, because other threads may use them.
    record(handle, for: name)
    return handle
  }

  /// Records a table handle. Needs `tablesLock`.
  private func record(_ handle: UInt32, for name: String) {
    tableHandles[name] = handle
    if handle >= tableHandleEnd.load(ordering: .relaxed) { tableHandleEnd.store(handle + 1, ordering: .releasing) }
  }

  private func knownTableHandle(_ name: String) -> UInt32? {
    tablesLock.lock()
    defer { tablesLock.unlock() }
    return tableHandles[name]
  }

  /// Returns the number of live pages: of all opened tables, the free list, the main table, and the two meta pages.
  ///
  /// In a write transaction this includes its changes. Unlike the file's length, the number can fall. Costs some
  /// nanoseconds per table. `mdb_stat`.
  /// - Parameter transaction: A transaction of this environment that began after the last table was opened.
  /// - Throws: ``LMDBError``.
  @inlinable
  public func livePageCount(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
    try livePageCount(transaction.handle)
  }

  @usableFromInline
  func livePageCount(_ handle: TransactionHandle) throws(LMDBError) -> Int {
    if handle.serial != serial { trap(.foreignTransaction) }
    var pageCount = 2
    for table in 0..<tableHandleEnd.load(ordering: .acquiring) {
      pageCount += try TableStatistics(handle, table).pageCount
    }
    // The transaction keeps the map in place.
    var information = MDB_envinfo()
    mdb_env_info(pointer, &information)
    guard pageCount <= information.me_mapsize / pageByteCount else {
      throw LMDBError(code: .corrupted, function: "mdb_stat")
    }
    return pageCount
  }

  /// Returns statistics of the main table. Each entry is a named table, opened or not. `mdb_stat`.
  ///
  /// - Throws: ``LMDBError``.
  public func mainTableStatistics(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> TableStatistics {
    let handle = transaction.handle
    if handle.serial != serial { trap(.foreignTransaction) }
    return try TableStatistics(handle, 1)
  }
}
