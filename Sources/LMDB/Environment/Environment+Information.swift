internal import CLMDB
internal import Glibc

extension Environment {
  /// Properties of an environment at one moment.
  public struct Information: Sendable, Hashable {
    /// The size of the map in bytes, which limits the size of the data file.
    public let mapByteCount: Int

    /// The number of the last page that was ever used. Page numbers start at 0, so the file has one page more.
    public let lastPageNumber: Int

    /// The number of the last commit.
    public let lastTransactionID: UInt64

    /// The number of simultaneous read transactions that the lock file supports.
    public let maximumReaders: Int

    /// The maximum number of reader slots that were in use at once.
    public let usedReaders: Int
  }

  /// The present properties of the environment. Costs some ten nanoseconds. `mdb_env_info`.
  public var information: Information {
    let information = rawInformation
    return Information(
      mapByteCount: information.me_mapsize, lastPageNumber: information.me_last_pgno,
      lastTransactionID: UInt64(information.me_last_txnid), maximumReaders: Int(information.me_maxreaders),
      usedReaders: Int(information.me_numreaders))
  }

  /// The number of the last commit by any process. Costs some ten nanoseconds. `mdb_env_info`.
  public var lastTransactionID: UInt64 {
    UInt64(rawInformation.me_last_txnid)
  }

  private var rawInformation: MDB_envinfo {
    var information = MDB_envinfo()
    // mdb_env_info reads the map, which must not move during the call. In a forked child no thread moves it.
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
        // Within a transaction of this thread, the map does not move.
        if isInTransaction {
          mdb_env_info(pointer, &information)
          return information
        }
        usleep(100)
      } catch {
        // The environment was closed, or the map could not be mapped again.
        return information
      }
    }
  }

  /// Frees the reader slots of dead processes, so that the pages of their snapshots can be reused.
  ///
  /// Costs microseconds. It cannot free the slot of a suspended process.
  /// - Returns: The number of freed slots.
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

  /// Ends the pooled read transactions that no thread has used since the last call, and releases their reader slots.
  ///
  /// The next read takes a slot again, which costs some hundred nanoseconds. Call this every few seconds, so that a
  /// process that no longer reads does not occupy slots that others need. Costs some nanoseconds per transaction.
  public func endIdleReads() {
    do throws(LMDBError) {
      try beginCall("mdb_txn_abort")
    } catch {
      // The environment was closed, which ended the transactions.
      return
    }
    defer { endCall() }
    guard !isForked else { return }
    slots.endIdleTransactions(for: ReaderSlot.currentThread)
  }

  /// Extends the data file to its last page. Call this after a commit.
  ///
  /// A value that is stored and removed within one transaction can leave pages that count as used and were never
  /// written. The file is then shorter than its meta page says, like a truncated file, and
  /// ``DataFile/inspect(path:mapByteCount:)`` cannot distinguish the two. Costs an `fstat`. A short file is extended
  /// within a write transaction, without using disk space. Traps within a write transaction if the file is short.
  /// - Returns: Whether the file was short.
  /// - Throws: ``LMDBError``. `mdb_env_get_fd`, `ftruncate`.
  @discardableResult
  public func extendFileToLastPage() throws(LMDBError) -> Bool {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_env_get_fd") }
    try beginCall("mdb_env_get_fd")
    defer { endCall() }
    let descriptor = try dataDescriptor()
    guard try missingByteCount(descriptor) != nil else { return false }
    // The write transaction prevents other writers from extending the file in between. Otherwise ftruncate would cut
    // off their pages.
    return try write { (_) throws(LMDBError) in
      guard let byteCount = try missingByteCount(descriptor) else { return false }
      guard ftruncate(descriptor, off_t(byteCount)) == 0 else { throw .system("ftruncate") }
      return true
    }
  }

  /// Returns the length that the file needs, or nil if it is long enough.
  private func missingByteCount(_ descriptor: CInt) throws(LMDBError) -> Int? {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    let needed = (rawInformation.me_last_pgno + 1) * pageByteCount
    return Int(status.st_size) < needed ? needed : nil
  }
}
