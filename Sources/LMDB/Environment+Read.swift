internal import CLMDB
internal import Synchronization

/// A read transaction that was taken from the pool, and the slot to give it back to.
@usableFromInline
struct ReaderLease {
  @usableFromInline let transaction: OpaquePointer
  let slot: UnsafeMutablePointer<ReaderSlot>
}

extension Environment {
  /// Runs `body` with a read transaction: a snapshot of the last commit.
  ///
  /// The transaction comes from a pool and costs some tens of nanoseconds. It never waits for a writer. Keep it
  /// short: while it lasts, no page that was in use at its beginning can be used anew, in any process, and the file
  /// grows instead. A read within a read is permitted and sees a snapshot of its own.
  ///
  ///     let count = try environment.read { transaction throws(LMDBError) in
  ///       try table.value(for: "visits", in: transaction)
  ///     }
  /// - Parameter body: what to do. What it throws is thrown on.
  /// - Returns: what `body` returns.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/readersFull`` when all reader slots are taken, after those of dead
  ///   processes were cleared, and none comes free within a second; after that nobody waits for one for a while.
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

  /// Counts the calling thread in among those for whom the map must stay where it is: takes a slot, and passes the
  /// gate.
  ///
  /// - Parameter waits: whether to wait for a while when none is free.
  func enter(_ function: String, waits: Bool = true) throws(LMDBError) -> UnsafeMutablePointer<ReaderSlot> {
    let thread = ReaderSlot.currentThread
    guard !isForked else { throw LMDBError(code: .forked, function: function) }
    while true {
      var slot = slots.claim(for: thread)
      if slot == nil, waits { slot = try waitForSlot(for: thread) }
      guard let slot else { throw LMDBError(code: .readersFull, function: function) }
      if gate.load(ordering: .sequentiallyConsistent) == Gate.open { return slot }
      if try passesClosedGate(slot, thread, function) { return slot }
    }
  }

  /// Decides about a thread that found the gate closed: it may pass, or has waited and must try again.
  @inline(never)
  private func passesClosedGate(
    _ slot: UnsafeMutablePointer<ReaderSlot>, _ thread: UInt, _ function: String
  ) throws(LMDBError) -> Bool {
    // Who closes the gate waits for the transactions that are under way. A thread that has one, and begins another
    // within, must not wait in turn.
    if slots.ownedCount(by: thread) > 1 || writingThread.load(ordering: .relaxed) == thread { return true }
    slots.release(slot)
    if gate.load(ordering: .acquiring) == Gate.broken { throw LMDBError(code: .panic, function: function) }
    gateLock.lock()
    gateLock.unlock()
    return false
  }

  @inline(never)
  private func waitForSlot(for thread: UInt) throws(LMDBError) -> UnsafeMutablePointer<ReaderSlot>? {
    try waitUnlessReading { () throws(LMDBError) in slots.claim(for: thread) }
  }

  /// Not for a thread that has a slot already: such threads would wait for each other.
  private func waitUnlessReading<R>(for search: () throws(LMDBError) -> R?) throws(LMDBError) -> R? {
    slots.ownedCount(by: ReaderSlot.currentThread) > 0 ? nil : try slotQueue.wait(for: search)
  }

  @inline(never)
  private func beginNewRead(_ slot: UnsafeMutablePointer<ReaderSlot>) throws(LMDBError) -> ReaderLease {
    guard isInOpeningProcess else {
      slots.release(slot)
      throw LMDBError(code: .forked, function: "mdb_txn_begin")
    }
    var rc = beginTransaction(of: slot)
    if rc == MDB_READERS_FULL {
      // Slots of processes that died stay taken until someone looks.
      var dead: CInt = 0
      if mdb_reader_check(pointer, &dead) == 0, dead > 0 { rc = beginTransaction(of: slot) }
    }
    if rc == 0, let transaction = slot.pointee.transaction {
      return ReaderLease(transaction: transaction, slot: slot)
    }
    return try beginReadAfterFailure(LMDBError(rc, "mdb_txn_begin"), slot)
  }

  private func beginTransaction(of slot: UnsafeMutablePointer<ReaderSlot>) -> CInt {
    // Not within the slot itself: other threads look at its owner meanwhile.
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
      // Other processes have all slots of the lock file, or other threads of this one have more than their pool.
      if let lease = try beginReadInFullTable() { return lease }
      if let lease = try waitUnlessReading(for: beginReadInFullTable) { return lease }
      throw error
    case .mapResized:
      try adoptMapByteCountForReading(after: error)
      return try beginReadOnce()
    default:
      throw error
    }
  }

  /// Nil if no slot of the lock file is free, and no transaction of the pool.
  private func beginReadInFullTable() throws(LMDBError) -> ReaderLease? {
    let thread = ReaderSlot.currentThread
    if let another = slots.claimWithTransaction(for: thread) {
      guard gate.load(ordering: .sequentiallyConsistent) == Gate.open else {
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

  /// As ``beginRead()``, but every failure is final.
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
