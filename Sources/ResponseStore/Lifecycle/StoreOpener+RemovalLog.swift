import Glibc
import LMDB

extension StoreOpener {
  /// Opens the removal log of the data. If it cannot be read, removes everything.
  ///
  /// An inspection throws instead: without a readable log, removed responses cannot be distinguished from others.
  func openRemovalLog(of database: RecordDatabase, isFirst: Bool) throws(StoreError) -> RemovalLog {
    let counters: PersistentCounters
    do throws(LMDBError) {
      counters = try database.counters()
    } catch {
      throw failure(error)
    }
    let present = try presentRemovalLog(of: database)
    do throws(RemovalLog.Failure) {
      return try openRemovalLog(present, of: database, counters, isFirst: isFirst)
    } catch {
      switch error {
      case _ where isInspection:
        throw StoreError(
          .corrupt, directory: directory.path, reason: "\(RemovalLog.name) is missing or corrupt",
          remedy: "Open a cache on the directory: it repairs the log, and removes all responses, "
            + "because any of them may have been removed before")
      case .busy:
        throw corrupt(reason: "\(RemovalLog.name) is missing or corrupt, and in use")
      case .system(let number):
        throw .unusable(directory.path, doing: "creating \(RemovalLog.name)", number)
      }
    }
  }

  private func openRemovalLog(
    _ present: RemovalLog?, of database: RecordDatabase, _ counters: PersistentCounters, isFirst: Bool
  ) throws(RemovalLog.Failure) -> RemovalLog {
    guard isFirst else {
      guard let present else { throw .busy }
      return present
    }
    if isInspection, present == nil { throw .busy }
    let log = if let present { present } else { try createRemovalLog(of: database) }
    let unreadable = try log.recover(
      lastApplied: counters.lastAppliedRemoval, known: counters.knownRemoval, isSameBoot: directory.isSameBoot)
    if isInspection {
      guard unreadable.isEmpty else { throw .busy }
      return log
    }
    let isMissing = present == nil && counters.nextRowID > PersistentCounters().nextRowID
    guard isMissing || !unreadable.isEmpty else { return try resized(log, of: database, counters) ?? log }
    self.log(
      "The removal log is missing or corrupt; everything was removed, because removed responses could otherwise reappear"
    )
    // In a full log, the unreadable frame itself is in force, and is read as a removal of everything.
    if log.sequence - log.lastApplied < UInt64(log.frameCount) {
      try log.append(.everything, timeout: options.openTimeout) {}
    }
    // Overwrite the frames only after everything is removed, so that it is not removed again at the next open.
    try log.overwrite(unreadable: unreadable)
    return log
  }

  /// Maps the log; nil if it is missing, corrupt, or not of the database.
  ///
  /// - Throws: ``StoreError`` if a limit of this process prevents that. The log must not be replaced then.
  private func presentRemovalLog(of database: RecordDatabase) throws(StoreError) -> RemovalLog? {
    errno = 0
    if let log = RemovalLog.open(path: directory.removalLogPath, owner: database.owner) { return log }
    let code = LMDBError.Code(rawValue: errno)
    if let error = ProcessLimits.error(code, directory: directory.path, doing: "opening \(RemovalLog.name)") {
      throw error
    }
    return nil
  }

  /// Replaces a log that has the size of another capacity. Returns nil if it is to stay.
  private func resized(
    _ log: RemovalLog, of database: RecordDatabase, _ counters: PersistentCounters
  ) throws(RemovalLog.Failure) -> RemovalLog? {
    guard log.frameCount != frameCount, !log.hasRemovalsToApply else { return nil }
    do throws(RemovalLog.Failure) {
      let resized = try createRemovalLog(of: database)
      _ = try resized.recover(
        lastApplied: counters.lastAppliedRemoval, known: counters.knownRemoval, isSameBoot: false)
      return resized
    } catch {
      // On a full disk the store opens with the log that it has.
      if case .system(let number) = error, number == ENOSPC || number == EDQUOT { return nil }
      throw error
    }
  }

  private var frameCount: Int { RemovalLog.frameCount(capacityByteCount: options.capacityByteCount) }

  private func createRemovalLog(of database: RecordDatabase) throws(RemovalLog.Failure) -> RemovalLog {
    let log = try RemovalLog.create(path: directory.removalLogPath, owner: database.owner, frameCount: frameCount)
    StoreDirectory.synchronize(directory.dataDirectory)
    return log
  }
}
