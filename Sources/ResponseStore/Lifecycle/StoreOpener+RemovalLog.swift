import Glibc
import LMDB

extension StoreOpener {
  /// Opens the removal log of the data, or creates it for data that never had a record.
  ///
  /// Without a readable log, removed responses cannot be distinguished from others, so the data counts as corrupt.
  func openRemovalLog(of database: RecordDatabase, isFirst: Bool) throws(StoreError) -> RemovalLog {
    let counters: PersistentCounters
    do throws(LMDBError) {
      counters = try database.counters()
    } catch {
      throw failure(error)
    }
    do throws(RemovalLog.Failure) {
      if let log = try presentRemovalLog(of: database) {
        let isReadable =
          !isFirst
          ? true
          : try log.recover(
            lastApplied: counters.lastAppliedRemoval, known: counters.knownRemoval, isSameBoot: directory.isSameBoot)
        if isReadable { return log }
      } else if isFirst, !isInspection, counters.nextRowID == PersistentCounters().nextRowID {
        let log = try RemovalLog.create(
          path: directory.removalLogPath, owner: database.owner,
          frameCount: RemovalLog.frameCount(capacityByteCount: options.capacityByteCount))
        StoreDirectory.synchronize(directory.dataDirectory)
        return log
      }
    } catch {
      guard case .system(let number) = error else { throw .busy(directory.path, reason: "the removal log is locked") }
      throw .unusable(directory.path, doing: "opening \(RemovalLog.name)", number)
    }
    throw corrupt(reason: "\(RemovalLog.name) is missing or corrupt")
  }

  /// Maps the log; nil if it is missing, corrupt, or not of the database.
  ///
  /// - Throws: A limit of this process that prevents that. The data must not be replaced then.
  private func presentRemovalLog(of database: RecordDatabase) throws(RemovalLog.Failure) -> RemovalLog? {
    errno = 0
    if let log = RemovalLog.open(path: directory.removalLogPath, owner: database.owner) { return log }
    let number = errno
    let isLimit = ProcessLimits.error(LMDBError.Code(rawValue: number), directory: directory.path, doing: "") != nil
    if isLimit { throw .system(number) }
    return nil
  }
}
