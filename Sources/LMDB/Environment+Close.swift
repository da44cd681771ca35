internal import CLMDB
internal import Glibc
internal import Synchronization

extension Environment {
  /// Closes the environment although references to it are left, so that its directory can be opened anew; whatever is
  /// tried with it from then on throws ``LMDBError/Code/panic``.
  ///
  /// Transactions that are under way are waited for. Not to be called within one.
  /// - Returns: False if there are still some after about a second. No others can begin, and the call can be repeated.
  public func close() -> Bool {
    guard isInOpeningProcess else { return false }
    // A map that is being moved has its own reasons to wait.
    guard close(gateTo: Gate.broken) || gate.load(ordering: .acquiring) == Gate.broken else { return false }
    // Writers first: they may begin reads within, which end before they do.
    for attempt in 0... {
      if callCount.load(ordering: .sequentiallyConsistent) == 0 { break }
      if attempt == 5_000 { return false }
      usleep(100)
    }
    guard slots.waitUntilIdle(for: 500 * Clock.millisecond) else { return false }
    closeNow()
    return true
  }

  /// Closes it if that was not done before. Nobody may use it any more.
  func closeNow() {
    EnvironmentRegistry.close(identity: identity, serial: serial) {
      guard !isClosed.exchange(true, ordering: .relaxed) else { return }
      slots.endTransactions()
      EnvironmentRegistry.releaseDamageHandler(of: pointer)
      // Whoever is stopped while it opens or closes does no harm meanwhile, and must not keep this process from going on.
      DirectoryLock.whileHolding(directoryLock) { _ in mdb_env_close(pointer) }
      Glibc.close(syncDescriptor)
      directoryLock.close()
    }
  }

  /// Whether the data file of a directory is the one that is open. Costs a `stat`. What cannot be looked at for another
  /// reason than that it is not there, counts as in its place.
  public func isDataFile(ofDirectory directory: String) -> Bool {
    var status = stat()
    if stat("\(directory)/\(DataFile.name)", &status) == 0 { return DirectoryIdentity(status) == dataFileIdentity }
    return errno != ENOENT && errno != ENOTDIR
  }

  // MARK: Calls that the slots do not show

  /// Counts the caller in among those whom ``close()`` waits for.
  func beginCall(_ function: String) throws(LMDBError) {
    // Sequentially consistent, as for the slots: either this sees the gate, or who closed it sees the count.
    callCount.add(1, ordering: .sequentiallyConsistent)
    guard gate.load(ordering: .sequentiallyConsistent) != Gate.broken else {
      endCall()
      throw LMDBError(code: .panic, function: function)
    }
  }

  func endCall() {
    callCount.subtract(1, ordering: .sequentiallyConsistent)
  }
}
