internal import CLMDB
internal import Glibc
internal import Synchronization

extension Environment {
  /// Gives the map, and so the file's greatest size, another number of bytes.
  ///
  /// It waits for the write transactions of this process, one of which may wait for another process, and for a moment in
  /// which no thread reads. Reads go on meanwhile. Called within a transaction it traps. Other processes take a larger size
  /// over when this one has next committed. Better give all processes one size for good.
  /// - Parameter count: in bytes, positive, rounded down to whole pages; a size below what is in use becomes that.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/outOfMemory`` when the address space has no room; the size is then as
  ///   before. `mdb_env_set_mapsize`.
  public func setMapByteCount(_ count: Int) throws(LMDBError) {
    if count <= 0 { Trap.mapByteCountNotPositive() }
    guard isInOpeningProcess else { throw LMDBError(code: .forked, function: "mdb_env_set_mapsize") }
    if isInTransaction { Trap.resizeInTransaction() }
    try moveMapWaiting(byteCount: max(count / pageByteCount, 1) * pageByteCount)
  }

  /// Takes over the size that another process has given the map, for a thread that is about to write. It may block.
  ///
  /// - Parameter error: thrown when the thread is within another transaction, so that the map must stay.
  func adoptMapByteCount(after error: LMDBError) throws(LMDBError) {
    if isInTransaction { throw error }
    try moveMapWaiting(byteCount: Self.sizeInFile)
  }

  /// The same for a thread that is about to read, which waits for no writer: one of this process may be waiting for another
  /// process.
  ///
  /// - Parameter error: thrown also when the map could not be moved within some milliseconds.
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
      // A writer may have taken the size over, and be writing now.
      let slot = try enter("mdb_env_info")
      let isDone = coversFile
      slots.release(slot)
      if isDone { return }
      guard Clock.now < deadline else { throw error }
      usleep(100)
    }
  }

  /// Stands for the size that the file's newest meta page gives.
  private static let sizeInFile = 0

  var isInTransaction: Bool {
    let thread = ReaderSlot.currentThread
    return writingThread.load(ordering: .relaxed) == thread || slots.ownedCount(by: thread) > 0
  }

  private func moveMapWaiting(byteCount: Int) throws(LMDBError) {
    var patience = Clock.millisecond
    while true {
      // With the gate open: whoever has this lock may be waiting for another process, and reads must go on.
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
      // A thread that reads may be waiting for the write lock, or for something slow. Most of the time goes to the others.
      usleep(UInt32(4 * patience / 1000))
      patience = min(2 * patience, 64 * Clock.millisecond)
    }
  }

  /// Unmaps the file and maps it with another size, while no transaction of this process is under way: LMDB does not
  /// check for readers, whose pointers would dangle. For a thread that has the write lock.
  ///
  /// - Parameter patience: how long reads that begin may be kept waiting for those that are under way, in nanoseconds.
  /// - Returns: false if a read was still under way.
  private func moveMap(byteCount: Int, patience: UInt64) throws(LMDBError) -> Bool {
    gateLock.lock()
    defer { gateLock.unlock() }
    guard close(gateTo: Gate.closed) else { throw LMDBError(code: .panic, function: "mdb_env_set_mapsize") }
    // Another thread may have taken the size over meanwhile. And liblmdb unmaps the old map first, and cannot get it back when
    // the new one fails.
    let failure = byteCount == Self.sizeInFile || hasRoom(byteCount) ? nil : LMDBError.Code.outOfMemory
    let isDone = byteCount == Self.sizeInFile && coversFile
    guard failure == nil, !isDone, slots.waitUntilIdle(for: patience) else {
      gate.store(Gate.open, ordering: .releasing)
      if let failure { throw LMDBError(code: failure, function: "mdb_env_set_mapsize") }
      return isDone
    }
    let rc = mdb_env_set_mapsize(pointer, byteCount)
    gate.store(rc == 0 ? Gate.open : Gate.broken, ordering: .releasing)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_set_mapsize") }
    return true
  }

  /// Whether the map is as long as the last commit, by whichever process, demands. The map must not move meanwhile.
  private var coversFile: Bool {
    var information = MDB_envinfo()
    mdb_env_info(pointer, &information)
    return information.me_last_pgno < information.me_mapsize / pageByteCount
  }

  /// Closes the gate for a while or for good; false if it was not open. Whoever passed it before shows in the slots.
  func close(gateTo state: UInt) -> Bool {
    gate.compareExchange(expected: Gate.open, desired: state, ordering: .sequentiallyConsistent).exchanged
  }

  /// Whether the address space has room for a map of this size beside the present one.
  private func hasRoom(_ byteCount: Int) -> Bool {
    var descriptor: CInt = -1
    mdb_env_get_fd(pointer, &descriptor)
    guard let trial = mmap(nil, byteCount, PROT_READ, MAP_SHARED, descriptor, 0), trial != MAP_FAILED else {
      return false
    }
    munmap(trial, byteCount)
    return true
  }
}
