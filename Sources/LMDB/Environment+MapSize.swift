internal import CLMDB
internal import Glibc
internal import Synchronization

extension Environment {
  /// Gives the map, and so the file's greatest size, another number of bytes.
  ///
  /// It waits until every transaction of this process has ended; those that begin meanwhile wait for it. Called within
  /// a transaction it traps. Other processes take a larger size over when this one has next committed. Better give all
  /// processes one size for good.
  /// - Parameter count: in bytes, positive, rounded down to whole pages; a size below what is in use becomes that.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/outOfMemory`` when the address space has no room; the size is then as
  ///   before. `mdb_env_set_mapsize`.
  public func setMapByteCount(_ count: Int) throws(LMDBError) {
    if count <= 0 { Trap.mapByteCountNotPositive() }
    guard isInOpeningProcess else { throw LMDBError(code: .forked, function: "mdb_env_set_mapsize") }
    let thread = ReaderSlot.currentThread
    if writingThread.load(ordering: .relaxed) == thread || slots.ownedCount(by: thread) > 0 {
      Trap.resizeInTransaction()
    }
    try moveMap(byteCount: max(count / pageByteCount, 1) * pageByteCount)
  }

  /// Takes over the size that another process has given the map.
  ///
  /// - Parameter error: thrown when the thread is within another transaction, so that the map must stay.
  func adoptMapByteCount(after error: LMDBError) throws(LMDBError) {
    let thread = ReaderSlot.currentThread
    if writingThread.load(ordering: .relaxed) == thread || slots.ownedCount(by: thread) > 0 { throw error }
    // 0 stands for the size that the file's newest meta page gives.
    try moveMap(byteCount: 0)
  }

  /// Unmaps the file and maps it with another size, while no transaction of this process is under way: LMDB does not
  /// check for readers, whose pointers would dangle.
  private func moveMap(byteCount: Int) throws(LMDBError) {
    gateLock.lock()
    defer { gateLock.unlock() }
    guard close(gateTo: Gate.closed) else { throw LMDBError(code: .panic, function: "mdb_env_set_mapsize") }
    // Readers first: one of them may be waiting for the write lock. A writer may begin reads while this waits for it;
    // they end before it does, and what is left are threads that look at the gate and turn back.
    slots.waitUntilIdle()
    writeLock.lock()
    slots.waitUntilIdle()
    defer { writeLock.unlock() }

    // liblmdb unmaps the old map first, and cannot get it back when the new one fails.
    guard hasRoom(byteCount) else {
      gate.store(Gate.open, ordering: .releasing)
      throw LMDBError(code: .outOfMemory, function: "mdb_env_set_mapsize")
    }
    let rc = mdb_env_set_mapsize(pointer, byteCount)
    gate.store(rc == 0 ? Gate.open : Gate.broken, ordering: .releasing)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_set_mapsize") }
  }

  /// Closes the gate for a while or for good; false if it was not open. Whoever passed it before shows in the slots.
  func close(gateTo state: UInt) -> Bool {
    gate.compareExchange(expected: Gate.open, desired: state, ordering: .sequentiallyConsistent).exchanged
  }

  /// Whether the address space has room for a map of this size beside the present one.
  private func hasRoom(_ byteCount: Int) -> Bool {
    guard byteCount > 0 else { return true }
    var descriptor: CInt = -1
    mdb_env_get_fd(pointer, &descriptor)
    guard let trial = mmap(nil, byteCount, PROT_READ, MAP_SHARED, descriptor, 0), trial != MAP_FAILED else {
      return false
    }
    munmap(trial, byteCount)
    return true
  }
}
