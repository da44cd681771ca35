import LMDB

/// Opens an existing store without changes: nothing is created, repaired or quarantined, and the capacity stays.
extension StoreOpener {
  /// Checks that there is a store, before even a lock file is created.
  func inspectExistingData() throws(StoreError) {
    let condition = DataFile.inspect(path: directory.dataPath, mapByteCount: .max)
    switch condition {
    case .missing, .empty:
      throw .missing(directory.path, reason: "there is no store in it")
    case .unreadable, .otherOwner, .notRegularFile:
      throw StoreError(
        .unusableDirectory, directory: directory.path, reason: "data.mdb \(condition)",
        remedy: "Run as the user that the store belongs to")
    case _ where !directory.hasMarker:
      throw foreign(reason: "data.mdb \(condition), and not a store of this library")
    case .healthy where !directory.isMarkedFailed:
      return
    case .healthy:
      throw markedFailed
    default:
      throw corrupt(reason: "data.mdb \(condition)")
    }
  }

  func openExisting(isAlone: Bool) throws(StoreError) -> ResponseStore {
    switch try existingContents() {
    case .store(let database):
      openActivity(isAlone: isAlone)
      let store = try ready(database, isAlone: isAlone)
      try directory.finishOpening()
      return store
    case .foreign:
      throw corrupt(reason: "the data was never completed")
    case .otherVersion(let version):
      throw StoreError(
        .unsupportedFormat, directory: directory.path,
        reason: "it holds format \(version), this library knows format \(StorageFormat.version)",
        remedy: "Use the version that wrote it")
    }
  }

  private func ready(_ database: RecordDatabase, isAlone: Bool) throws(StoreError) -> ResponseStore {
    let counters: PersistentCounters
    do throws(LMDBError) {
      counters = try database.counters()
    } catch {
      throw failed(error)
    }
    let log = try existingRemovalLog(of: database, counters, isAlone: isAlone)
    do throws(LMDBError) {
      let capacity = max(Int(clamping: counters.capacityByteCount), ResponseStore.minimumCapacityByteCount)
      var options = options
      options.capacityByteCount = capacity
      let context = StoreContext(
        directory: directory, database: database, removalLog: log, options: options, counts: counts)
      let store = ResponseStore(context)
      try store.checker.prepare()
      try store.space.growMap(toCapacity: capacity)
      if isAlone { try useFittingIndex(of: database) }
      return store
    } catch {
      throw failed(error)
    }
  }

  /// Replaces, for this process, an index that lacks a commit of a killed process. Only a writer can complete it.
  private func useFittingIndex(of database: RecordDatabase) throws(LMDBError) {
    guard let index = database.index.current else { return }
    try database.environment.read { (transaction) throws(LMDBError) in
      if !index.isUpToDate(withCommit: transaction.id) { try database.buildPrivateIndex(in: transaction) }
    }
  }

  /// Opens the removal log without repairing it.
  ///
  /// Without a readable log, removed responses cannot be distinguished from others.
  private func existingRemovalLog(
    of database: RecordDatabase, _ counters: PersistentCounters, isAlone: Bool
  ) throws(StoreError) -> RemovalLog {
    let log = try presentRemovalLog(of: database)
    var isReadable = log != nil
    if isAlone, let log {
      do throws(RemovalLog.Failure) {
        isReadable = try log.recover(
          lastApplied: counters.lastAppliedRemoval, known: counters.knownRemoval, isSameBoot: directory.isSameBoot
        ).isEmpty
      } catch {
        isReadable = false
      }
    }
    guard isReadable, let log else {
      throw StoreError(
        .corrupt, directory: directory.path, reason: "\(RemovalLog.name) is missing or corrupt",
        remedy: "Open a cache on the directory: it repairs the log, and removes all responses, "
          + "because any of them may have been removed before")
    }
    return log
  }

  private func existingContents() throws(StoreError) -> RecordDatabase.Contents {
    do throws(LMDBError) {
      // The capacity is stored in the file. Until it is read, the map is as large as the file.
      return try RecordDatabase.open(
        directory: directory.path, statusPage: directory.lockedStatusPage,
        mapByteCount: max(directory.dataFileByteCount, ResponseStore.minimumCapacityByteCount),
        capacityByteCount: options.capacityByteCount, completesNew: false, isReadOnly: directory.isReadOnly)
    } catch {
      throw failed(error)
    }
  }

  /// The error for data that a process has marked as failed.
  var markedFailed: StoreError { corrupt(reason: "the data is marked as failed") }

  private func failed(_ error: LMDBError) -> StoreError {
    error.isCorruption
      ? corrupt(reason: "the data is corrupt (\(error))")
      : .storage(error, directory: directory.path, doing: "Opening the data")
  }

  private func corrupt(reason: String) -> StoreError {
    StoreError(
      .corrupt, directory: directory.path, reason: reason,
      remedy: "The next cache that is opened on the directory quarantines the data and starts empty")
  }
}

extension StoreError {
  static func missing(_ directory: String, reason: String) -> StoreError {
    StoreError(
      .notFound, directory: directory, reason: reason,
      remedy: "See whether the path is right; a cache makes its store when it is first opened")
  }
}
