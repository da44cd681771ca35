internal import CLMDB
internal import Glibc

extension Environment {
  /// Numbers about an environment at one moment.
  public struct Information: Sendable, Hashable {
    /// The size of the map in bytes: the most that the data file can grow to.
    public let mapByteCount: Int

    /// The number of the last page that was ever used. The file holds this many pages and one more.
    public let lastPageNumber: Int

    /// The number of the last commit.
    public let lastTransactionID: UInt64

    /// How many simultaneous read transactions the lock file has room for.
    public let maximumReaders: Int

    /// How many of the lock file's reader slots were ever in use at once.
    public let usedReaders: Int
  }

  /// Numbers about the environment now. Costs some ten nanoseconds. `mdb_env_info`.
  public var information: Information {
    let information = rawInformation
    return Information(
      mapByteCount: information.me_mapsize, lastPageNumber: information.me_last_pgno,
      lastTransactionID: UInt64(information.me_last_txnid), maximumReaders: Int(information.me_maxreaders),
      usedReaders: Int(information.me_numreaders))
  }

  /// The number of the last commit, by whichever process. Costs some ten nanoseconds. `mdb_env_info`.
  public var lastTransactionID: UInt64 {
    UInt64(rawInformation.me_last_txnid)
  }

  private var rawInformation: MDB_envinfo {
    var information = MDB_envinfo()
    // mdb_env_info looks into the map, which must not move meanwhile. In a forked child nobody moves it.
    guard !isForked else {
      if !isClosed.load(ordering: .relaxed) { mdb_env_info(pointer, &information) }
      return information
    }
    while true {
      do throws(LMDBError) {
        let slot = try enter("mdb_env_info")
        defer { slots.release(slot) }
        mdb_env_info(pointer, &information)
        return information
      } catch LMDBError.Code.readersFull {
        // Within a transaction of its own it stays where it is anyway.
        if isInTransaction {
          mdb_env_info(pointer, &information)
          return information
        }
        usleep(100)
      } catch {
        // The map is lost, or was given up.
        return information
      }
    }
  }

  /// Frees the reader slots of processes that died, so that pages they looked at can be used again.
  ///
  /// Costs microseconds. It cannot free the slot of a process that is stopped but alive.
  /// - Returns: the number of slots freed.
  /// - Throws: ``LMDBError``. `mdb_reader_check`.
  @discardableResult
  public func clearStaleReaders() throws(LMDBError) -> Int {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_reader_check") }
    try beginCall("mdb_reader_check")
    defer { endCall() }
    var cleared: CInt = 0
    let rc = mdb_reader_check(pointer, &cleared)
    guard rc == 0 else { throw LMDBError(rc, "mdb_reader_check") }
    return Int(cleared)
  }

  /// Ends the read transactions that this process keeps for the next reads and that none has used since the last call. That gives
  /// their reader slots back; the next read takes one again, which costs some hundred nanoseconds.
  ///
  /// To be called every few seconds: a process that does not read any more shall not keep others from reading. Costs some
  /// nanoseconds for each.
  public func endIdleReads() {
    do throws(LMDBError) {
      try beginCall("mdb_txn_abort")
    } catch {
      // It was closed, and they have ended.
      return
    }
    defer { endCall() }
    guard !isForked else { return }
    slots.endIdleTransactions(for: ReaderSlot.currentThread)
  }

  /// Makes the data file as long as its last page demands. To be called after a commit.
  ///
  /// A value that is stored and removed within one transaction can leave pages that count as used and were never
  /// written. The file is then shorter than it says, as it is after damage, and ``DataFile/inspect(path:mapByteCount:)``
  /// could not tell one from the other. Costs an `fstat`; a short file is extended, without using disk space, within a
  /// write transaction. Called within a write transaction it traps if the file is short.
  /// - Returns: whether the file was short.
  /// - Throws: ``LMDBError``. `mdb_env_get_fd`, `ftruncate`.
  @discardableResult
  public func extendShortFile() throws(LMDBError) -> Bool {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_env_get_fd") }
    try beginCall("mdb_env_get_fd")
    defer { endCall() }
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    guard try missingByteCount(descriptor) != nil else { return false }
    // The write transaction keeps other writers from making the file longer meanwhile: ftruncate would cut it.
    return try write { (_) throws(LMDBError) in
      guard let byteCount = try missingByteCount(descriptor) else { return false }
      guard ftruncate(descriptor, off_t(byteCount)) == 0 else { throw .system("ftruncate") }
      return true
    }
  }

  /// The length that the file should have, or nil if it has it.
  private func missingByteCount(_ descriptor: CInt) throws(LMDBError) -> Int? {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    let needed = (rawInformation.me_last_pgno + 1) * pageByteCount
    return Int(status.st_size) < needed ? needed : nil
  }
}
