internal import CLMDB
internal import Synchronization

/// A read transaction from the pool, and the slot to return it to.
@usableFromInline
struct ReaderLease {
  @usableFromInline let transaction: OpaquePointer
  let slot: UnsafeMutablePointer<ReaderSlot>
}

extension LMDBEnvironment {
  /// Runs `body` with a read transaction: a snapshot of the last commit.
  ///
  /// The transaction comes from a pool and costs some tens of nanoseconds. It never waits for a writer. Keep it short:
  /// while it runs, no process can reuse the pages of its snapshot, and the file grows instead. Reads can be nested;
  /// each has its own snapshot.
  ///
  ///     let count = try environment.read { transaction throws(LMDBError) in
  ///       try table.value(for: "visits", in: transaction)
  ///     }
  /// - Parameter body: The closure to run. Its errors are rethrown.
  /// - Returns: The result of `body`.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/readersFull`` if all reader slots are taken, and clearing those of dead
  ///   processes and waiting for a second freed none. Later reads then fail at once for a while.
  ///   ``LMDBError/Code/forked``; ``LMDBError/Code/panic``. `mdb_txn_begin`, `mdb_txn_renew`.
  @inlinable @discardableResult
  public func read<R>(_ body: (borrowing ReadTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    let lease = try beginRead()
    defer { endRead(lease) }
    return try body(
      ReadTransaction(handle: TransactionHandle(pointer: lease.transaction, serial: serial, writeState: nil)))
  }

  @usableFromInline
  func beginRead() throws(LMDBError) -> ReaderLease {
    let slot = try enter("mdb_txn_renew")
    if let transaction = slot.pointee.transaction {
      let rc = mdb_txn_renew(transaction)
      if rc == 0 { return ReaderLease(transaction: transaction, slot: slot) }
      return try beginReadAfterFailure(LMDBError(rc, "mdb_txn_renew"), slot)
    }
    return try beginNewRead(slot)
  }

  @usableFromInline
  func endRead(_ lease: ReaderLease) {
    if slots.isPooled(lease.slot) {
      mdb_txn_reset(lease.transaction)
    } else {
      mdb_txn_abort(lease.transaction)
      lease.slot.pointee.transaction = nil
    }
    slots.release(lease.slot)
  }

  /// Claims a slot and passes the gate, so that the map stays in place until the slot is released.
  ///
  /// - Parameter waits: Whether to wait for up to a second if no slot is free.
  func enter(_ function: String, waits: Bool = true) throws(LMDBError) -> UnsafeMutablePointer<ReaderSlot> {
    let thread = ReaderSlot.currentThread
    guard !isForked else { throw LMDBError(code: .forked, function: function) }
    while true {
      var slot = slots.claim(for: thread)
      if slot == nil, waits { slot = try waitForSlot(for: thread) }
      guard let slot else { throw LMDBError(code: .readersFull, function: function) }
      if gate.load(ordering: .sequentiallyConsistent) == TransactionGate.open { return slot }
      if try passesClosedGate(slot, thread, function) { return slot }
    }
  }

  /// Handles a thread that found the gate closed.
  ///
  /// Returns true if it may pass; otherwise it has waited and must try again.
  @inline(never)
  private func passesClosedGate(
    _ slot: UnsafeMutablePointer<ReaderSlot>, _ thread: UInt, _ function: String
  ) throws(LMDBError) -> Bool {
    // The thread that closes the gate waits for running transactions. A thread with a running transaction therefore
    // must not wait for the gate.
    if slots.ownedCount(by: thread) > 1 || writingThread.load(ordering: .relaxed) == thread { return true }
    slots.release(slot)
    if gate.load(ordering: .acquiring) == TransactionGate.broken { throw LMDBError(code: .panic, function: function) }
    // Wait until the gate opens.
    gateLock.lock()
    gateLock.unlock()
    return false
  }

  @inline(never)
  private func waitForSlot(for thread: UInt) throws(LMDBError) -> UnsafeMutablePointer<ReaderSlot>? {
    try waitUnlessReading { () throws(LMDBError) in slots.claim(for: thread) }
  }

  /// Repeats `search` until it finds a result, unless the thread owns a slot: such threads would wait for each other.
  private func waitUnlessReading<R>(for search: () throws(LMDBError) -> R?) throws(LMDBError) -> R? {
    slots.ownedCount(by: ReaderSlot.currentThread) > 0 ? nil : try slotWait.wait(for: search)
  }

  @inline(never)
  private func beginNewRead(_ slot: UnsafeMutablePointer<ReaderSlot>) throws(LMDBError) -> ReaderLease {
    guard isInOpeningProcess else {
      slots.release(slot)
      throw LMDBError(code: .forked, function: "mdb_txn_begin")
    }
    var rc = beginTransaction(of: slot)
    if rc == MDB_READERS_FULL {
      // Slots of dead processes stay taken until a process clears them.
      var dead: CInt = 0
      if mdb_reader_check(pointer, &dead) == 0, dead > 0 { rc = beginTransaction(of: slot) }
    }
    if rc == 0, let transaction = slot.pointee.transaction {
      return ReaderLease(transaction: transaction, slot: slot)
    }
    return try beginReadAfterFailure(LMDBError(rc, "mdb_txn_begin"), slot)
  }

  private func beginTransaction(of slot: UnsafeMutablePointer<ReaderSlot>) -> CInt {
    // Do not pass a pointer into the slot: other threads read its owner at the same time.
    var begun: OpaquePointer?
    let rc = mdb_txn_begin(pointer, nil, UInt32(MDB_RDONLY), &begun)
    if rc == 0 { slot.pointee.transaction = begun }
    return rc
  }

  @inline(never)
  private func beginReadAfterFailure(
    _ error: LMDBError, _ slot: UnsafeMutablePointer<ReaderSlot>
  ) throws(LMDBError) -> ReaderLease {
    slots.release(slot)
    switch error.code {
    case .readersFull:
      // Other processes have all slots of the lock file, or this process has more reading threads than pooled slots.
      if let lease = try beginReadWithFullLockFile() { return lease }
      if let lease = try waitUnlessReading(for: beginReadWithFullLockFile) { return lease }
      throw error
    case .mapResized:
      try adoptMapByteCountForReading(after: error)
      return try beginReadOnce()
    default:
      throw error
    }
  }

  /// Begins a read with a pooled transaction or a free slot of the lock file; nil if there is neither.
  private func beginReadWithFullLockFile() throws(LMDBError) -> ReaderLease? {
    let thread = ReaderSlot.currentThread
    if let another = slots.claimWithTransaction(for: thread) {
      guard gate.load(ordering: .sequentiallyConsistent) == TransactionGate.open else {
        slots.release(another)
        return nil
      }
      let transaction = another.pointee.transaction.unsafelyUnwrapped
      let rc = mdb_txn_renew(transaction)
      if rc == 0 { return ReaderLease(transaction: transaction, slot: another) }
      slots.release(another)
      throw LMDBError(rc, "mdb_txn_renew")
    }
    do throws(LMDBError) {
      return try beginReadOnce()
    } catch {
      guard error.code == .readersFull else { throw error }
      return nil
    }
  }

  /// Begins a read like ``beginRead()``, but does not recover from failures.
  private func beginReadOnce() throws(LMDBError) -> ReaderLease {
    let slot = try enter("mdb_txn_begin", waits: false)
    let rc = slot.pointee.transaction.map { mdb_txn_renew($0) } ?? beginTransaction(of: slot)
    if rc == 0, let transaction = slot.pointee.transaction {
      return ReaderLease(transaction: transaction, slot: slot)
    }
    slots.release(slot)
    throw LMDBError(rc, "mdb_txn_begin")
  }
}
