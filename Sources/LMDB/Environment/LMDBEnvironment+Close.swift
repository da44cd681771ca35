internal import CLMDB
internal import Glibc
internal import Synchronization

extension LMDBEnvironment {
  /// Closes the environment even if references to it remain, so that its directory can be opened again.
  ///
  /// Later calls throw ``LMDBError/Code/panic``. Waits for current transactions. Do not call this within a transaction.
  /// - Returns: False if transactions are still running after about a second. No new ones can begin, and the call can
  ///   be repeated.
  public func close() -> Bool {
    guard isInOpeningProcess else { return false }
    // Returns false while the map is being moved.
    guard close(gateTo: TransactionGate.broken) || gate.load(ordering: .acquiring) == TransactionGate.broken else {
      return false
    }
    // Wait for writers first: they may begin reads, which end before the writer does.
    for attempt in 0... {
      if callCount.load(ordering: .sequentiallyConsistent) == 0 { break }
      if attempt == 5_000 { return false }
      usleep(100)
    }
    guard slots.waitUntilIdle(for: 500 * Clock.millisecond) else { return false }
    closeNow()
    return true
  }

  /// Whether no transaction can begin, because LMDB could not write a meta page, or because of ``close()``.
  var hasPanicked: Bool {
    do throws(LMDBError) {
      try read { (_) throws(LMDBError) in }
      return false
    } catch {
      return error.code == .panic
    }
  }

  /// Closes the environment unless it is already closed. No thread may use it afterwards.
  func closeNow() {
    EnvironmentRegistry.close(identity: identity, serial: serial) {
      guard !isClosed.exchange(true, ordering: .relaxed) else { return }
      slots.endTransactions()
      EnvironmentRegistry.releaseCorruptionHandler(of: pointer)
      // Close even without the lock: a process suspended while opening or closing does no harm, and must not block this
      // one.
      DirectoryLock.whileHolding(directoryLock) { _ in mdb_env_close(pointer) }
      dataFile.close()
      directoryLock.close()
    }
  }

  /// Whether the data file of a directory is the open one. Costs a `stat`.
  ///
  /// Also true if the file cannot be examined for any other reason than that it does not exist.
  public func isDataFile(ofDirectory directory: String) -> Bool {
    if let identity = DirectoryIdentity(path: "\(directory)/\(DataFile.name)") { return identity == dataFileIdentity }
    return errno != ENOENT && errno != ENOTDIR
  }

  // MARK: Calls without a slot

  /// Registers a call that ``close()`` waits for.
  func beginCall(_ function: String) throws(LMDBError) {
    // Sequentially consistent, like the slots: either this thread sees the closed gate, or the closing thread sees the
    // count.
    callCount.add(1, ordering: .sequentiallyConsistent)
    guard gate.load(ordering: .sequentiallyConsistent) != TransactionGate.broken else {
      endCall()
      throw LMDBError(code: .panic, function: function)
    }
  }

  func endCall() {
    callCount.subtract(1, ordering: .sequentiallyConsistent)
  }
}
