internal import CLMDB
internal import Glibc
internal import Synchronization

extension LMDBEnvironment {
  /// Changes the size of the map, and thereby the maximum size of the file.
  ///
  /// Waits for the write transactions of this process, which may themselves wait for another process. Then waits for a
  /// moment without reads; until then, reads continue. Traps within a transaction. Other processes adopt the new size
  /// after the next commit of this process. Prefer one permanent size for all processes.
  /// - Parameter count: The positive size in bytes. It is rounded down to whole pages, but not below the pages in use.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/outOfMemory`` if the address space is exhausted; the size then stays the
  ///   same. `mdb_env_set_mapsize`.
  public func setMapByteCount(_ count: Int) throws(LMDBError) {
    if count <= 0 { trap(.mapByteCountNotPositive) }
    guard isInOpeningProcess else { throw LMDBError(code: .forked, function: "mdb_env_set_mapsize") }
    if isInTransaction { trap(.resizeInTransaction) }
    try moveMapWaiting(byteCount: max(count / pageByteCount, 1) * pageByteCount)
  }

  /// Adopts the map size that another process set, for a thread that is about to write. May block.
  ///
  /// - Parameter error: The error to throw within another transaction of the thread, when the map must not move.
  func adoptMapByteCount(after error: LMDBError) throws(LMDBError) {
    if isInTransaction { throw error }
    try moveMapWaiting(byteCount: Self.sizeInFile)
  }

  /// Adopts the map size that another process set, for a thread that is about to read.
  ///
  /// Does not wait for a writer, because a writer of this process may wait for another process.
  /// - Parameter error: The error to throw within another transaction, or if the map could not be moved within 20 ms.
  func adoptMapByteCountForReading(after error: LMDBError) throws(LMDBError) {
    if isInTransaction { throw error }
    let deadline = Clock.now + 20 * Clock.millisecond
    while true {
      if writeLock.tryLock() {
        defer { writeLock.unlock() }
        let time = Clock.now
        if time < deadline, try moveMap(byteCount: Self.sizeInFile, patience: deadline - time) { return }
        throw error
      }
      // A writer may already have adopted the size, and be writing now.
      let slot = try enter("mdb_env_info")
      let isDone = coversFile
      slots.release(slot)
      if isDone { return }
      guard Clock.now < deadline else { throw error }
      usleep(100)
    }
  }

  /// Passed as a map size, this makes liblmdb use the size in the file's newest meta page.
  private static let sizeInFile = 0

  var isInTransaction: Bool {
    let thread = ReaderSlot.currentThread
    return writingThread.load(ordering: .relaxed) == thread || slots.ownedCount(by: thread) > 0
  }

  private func moveMapWaiting(byteCount: Int) throws(LMDBError) {
    var patience = Clock.millisecond
    while true {
      // Keep the gate open: the holder of this lock may be waiting for another process, and reads must continue.
      writeLock.lock()
      let isMoved: Bool
      do throws(LMDBError) {
        isMoved = try moveMap(byteCount: byteCount, patience: patience)
      } catch {
        writeLock.unlock()
        throw error
      }
      writeLock.unlock()
      if isMoved { return }
      // A reading thread may wait for the write lock or for slow work. Leave most of the time to other threads.
      usleep(UInt32(4 * patience / 1000))
      patience = min(2 * patience, 64 * Clock.millisecond)
    }
  }

  /// Maps the file with another size while no transaction of this process is running. The caller holds the write lock.
  ///
  /// LMDB does not check for readers, whose pointers would dangle.
  /// - Parameter patience: How long to wait for running reads, in nanoseconds. New reads wait as long.
  /// - Returns: False if a read was still running.
  private func moveMap(byteCount: Int, patience: UInt64) throws(LMDBError) -> Bool {
    gateLock.lock()
    defer { gateLock.unlock() }
    guard close(gateTo: TransactionGate.closed) else { throw LMDBError(code: .panic, function: "mdb_env_set_mapsize") }
    // Another thread may have adopted the size already. Check the address space first: liblmdb unmaps the old map
    // before it maps the new one, and cannot restore it.
    let failure = byteCount == Self.sizeInFile || hasAddressSpace(byteCount) ? nil : LMDBError.Code.outOfMemory
    let isDone = byteCount == Self.sizeInFile && coversFile
    guard failure == nil, !isDone, slots.waitUntilIdle(for: patience) else {
      gate.store(TransactionGate.open, ordering: .releasing)
      if let failure { throw LMDBError(code: failure, function: "mdb_env_set_mapsize") }
      return isDone
    }
    let rc = mdb_env_set_mapsize(pointer, byteCount)
    gate.store(rc == 0 ? TransactionGate.open : TransactionGate.broken, ordering: .releasing)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_set_mapsize") }
    return true
  }

  /// Whether the map covers the last commit of any process. The map must not move during the call.
  private var coversFile: Bool {
    var information = MDB_envinfo()
    mdb_env_info(pointer, &information)
    return information.me_last_pgno < information.me_mapsize / pageByteCount
  }

  /// Closes the gate, temporarily or permanently. Returns false if it was not open.
  ///
  /// Threads that passed the gate before own a slot.
  func close(gateTo state: UInt) -> Bool {
    gate.compareExchange(expected: TransactionGate.open, desired: state, ordering: .sequentiallyConsistent).exchanged
  }

  /// Whether a map of this size fits into the address space in addition to the present one.
  private func hasAddressSpace(_ byteCount: Int) -> Bool {
    var descriptor: CInt = -1
    mdb_env_get_fd(pointer, &descriptor)
    guard let trial = mmap(nil, byteCount, PROT_READ, MAP_SHARED, descriptor, 0), trial != MAP_FAILED else {
      return false
    }
    munmap(trial, byteCount)
    return true
  }
}
