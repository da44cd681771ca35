internal import CLMDB
internal import Synchronization
internal import SystemFiles

extension LMDBEnvironment {
  /// Runs `body` in a write transaction, and commits when it returns.
  ///
  /// There is one writer at a time in all processes, and this call waits for others without limit. Call it from a
  /// thread that may block, never from an async function. A nested call on the same thread traps. Within `body` the
  /// thread may read, and sees the last commit.
  /// - Parameters:
  ///   - body: The closure to run. If it throws, nothing changes, and the error is rethrown.
  ///   - committed: Called after the commit, and before any process can begin the next write transaction through an
  ///     ``LMDBEnvironment``. Readers already see the commit. If the process dies in between, it is not called. It must
  ///     not begin a transaction that writes. Does nothing by default.
  /// - Returns: The result of `body`.
  /// - Throws: ``LMDBError`` from beginning or committing. After ``LMDBError/Code/mapFull``, ``LMDBError/Code/noSpace``
  ///   and ``LMDBError/Code/inputOutput`` nothing has changed and the environment still works.
  ///   ``LMDBError/Code/badTransaction`` means that `body` returned although one of its calls had failed permanently.
  ///   After ``LMDBError/Code/panic`` the environment is unusable. `mdb_txn_begin`, `mdb_txn_commit`.
  @inlinable @discardableResult
  public func write<R>(
    _ body: (borrowing WriteTransaction) throws(LMDBError) -> R, committed: () -> Void = {}
  ) throws(LMDBError) -> R {
    let handle = try beginWrite()
    let result: R
    do throws(LMDBError) {
      result = try body(WriteTransaction(handle: handle))
    } catch {
      abortWrite(handle)
      throw error
    }
    try commitWrite(handle, committed)
    return result
  }

  @usableFromInline
  func beginWrite() throws(LMDBError) -> TransactionHandle {
    let thread = ReaderSlot.currentThread
    if writingThread.load(ordering: .relaxed) == thread, !isForked { trap(.nestedWrite) }
    guard isInOpeningProcess else { throw LMDBError(code: .forked, function: "mdb_txn_begin") }
    try beginCall("mdb_txn_begin")
    do throws(LMDBError) {
      return try beginWrite(by: thread)
    } catch {
      endCall()
      throw error
    }
  }

  private func beginWrite(by thread: UInt) throws(LMDBError) -> TransactionHandle {
    var hasMovedMap = false
    while true {
      writeLock.lock()
      if gate.load(ordering: .acquiring) == TransactionGate.broken {
        writeLock.unlock()
        throw LMDBError(code: .panic, function: "mdb_txn_begin")
      }
      do throws(LMDBError) {
        if syncFailures.isLossPossible { try synchronizeFile() }
      } catch {
        writeLock.unlock()
        throw error
      }
      // Processes take turns with this lock, so that none of them sleeps in LMDB's own write lock. That is a robust
      // mutex, which wakes one waiter. If that waiter is killed before it has the mutex, and another process takes the
      // mutex first, the other waiters may never be woken.
      dataFile.lock()
      var transaction: OpaquePointer?
      let rc = mdb_txn_begin(pointer, nil, 0, &transaction)
      if rc == 0, let transaction {
        writingThread.store(thread, ordering: .relaxed)
        writeState.pointee = WriteState()
        return TransactionHandle(pointer: transaction, serial: serial, writeState: writeState)
      }
      dataFile.unlock()
      // The map can move only while no thread writes.
      writeLock.unlock()
      let error = LMDBError(rc, "mdb_txn_begin")
      guard error.code == .mapResized, !hasMovedMap else { throw error }
      try adoptMapByteCount(after: error)
      hasMovedMap = true
    }
  }

  @usableFromInline
  func commitWrite(_ handle: TransactionHandle, _ committed: () -> Void) throws(LMDBError) {
    let rc = WriteSignals.suppressing { mdb_txn_commit(handle.pointer) }
    // An error of the operating system; the sync may have failed.
    if rc > 0 { syncFailures.recordFailure() }
    if rc == 0 { committed() }
    endWrite()
    guard rc == 0 else { throw LMDBError(rc, "mdb_txn_commit") }
  }

  @usableFromInline
  func abortWrite(_ handle: TransactionHandle) {
    mdb_txn_abort(handle.pointer)
    endWrite()
  }

  private func endWrite() {
    writingThread.store(0, ordering: .relaxed)
    dataFile.unlock()
    writeLock.unlock()
    endCall()
  }
}
