import LMDB

extension StoreOpening {
  /// The log of removals that goes with the data. Without one that can be read nobody knows what was removed: then
  /// everything is.
  func openRemovalLog(of file: StoreFile, isAlone: Bool) throws(StoreError) -> RemovalLog {
    let counters: Counters
    do throws(LMDBError) {
      counters = try file.environment.read { (transaction) throws(LMDBError) in try file.counters(in: transaction) }
    } catch {
      throw .storage(error, directory: directory.path, doing: "Opening the data")
    }
    do throws(RemovalLog.Failure) {
      return try openRemovalLog(of: file, counters, isAlone: isAlone)
    } catch {
      switch error {
      case .busy:
        throw StoreError(
          .damagedAndInUse, directory: directory.path,
          reason: "\(RemovalLog.name) is missing or damaged, and the directory is in use",
          remedy: "End the processes that use the directory; the next one to open it starts anew")
      case .system(let number):
        throw .unusable(directory.path, doing: "making \(RemovalLog.name)", number)
      }
    }
  }

  private func openRemovalLog(
    of file: StoreFile, _ counters: Counters, isAlone: Bool
  ) throws(RemovalLog.Failure) -> RemovalLog {
    let path = directory.removalLogPath
    let present = RemovalLog.open(path: path, owner: file.owner)
    guard isAlone else {
      guard let present else { throw .busy }
      return present
    }
    let log: RemovalLog
    if let present {
      log = present
    } else {
      let slotCount = RemovalLog.slotCount(capacityByteCount: options.capacityByteCount)
      log = try RemovalLog.create(path: path, owner: file.owner, slotCount: slotCount)
      directory.synchronize()
    }
    let isReadable = try log.recover(adopted: counters.adoptedRemoval, known: counters.knownRemoval)
    let isMissing = present == nil && counters.nextRowID > Counters().nextRowID
    guard isMissing || !isReadable else { return log }
    self.log("The log of removals is missing or damaged; so that nothing comes back that was removed, everything is")
    // In a log that is full the damage itself stands among what is in force, and is read as a removal of everything.
    if log.sequence - log.adopted < UInt64(log.slotCount) {
      try log.append(.everything, timeout: options.openTimeout) {}
    }
    return log
  }
}
