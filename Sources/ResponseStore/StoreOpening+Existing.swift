import LMDB

/// Opening what is there as it is: nothing is made, repaired or set aside, and the capacity stays what it was.
extension StoreOpening {
  /// Before so much as a lock file is made: is there a store at all?
  func lookAtExistingData() throws(StoreError) {
    let condition = DataFile.inspect(path: directory.dataPath, mapByteCount: .max)
    switch condition {
    case .missing, .empty:
      throw .missing(directory.path, reason: "there is no store in it")
    case .unreadable, .otherOwner, .notRegularFile:
      throw StoreError(
        .unusableDirectory, directory: directory.path, reason: "data.mdb \(condition)",
        remedy: "Run as the user that the store belongs to")
    case _ where !directory.isOurs:
      throw foreign(reason: "data.mdb \(condition), and not a store of this library")
    case .healthy where !directory.isCondemned:
      return
    case .healthy:
      throw damaged(reason: "the data was given up, as damage was found in it")
    default:
      throw damaged(reason: "data.mdb \(condition)")
    }
  }

  func openExisting(isAlone: Bool) throws(StoreError) -> ResponseStore {
    switch try existingContents() {
    case .store(let file):
      let store = try ready(file, isAlone: isAlone)
      try directory.finishOpening()
      return store
    case .foreign:
      throw damaged(reason: "the data was never completed")
    case .otherVersion(let version):
      throw StoreError(
        .otherVersion, directory: directory.path,
        reason: "it holds format \(version), this library knows format \(StorageFormat.version)",
        remedy: "Use the version that wrote it")
    }
  }

  private func ready(_ file: StoreFile, isAlone: Bool) throws(StoreError) -> ResponseStore {
    let counters: Counters
    do throws(LMDBError) {
      counters = try file.environment.read { (transaction) throws(LMDBError) in try file.counters(in: transaction) }
      let capacity = max(Int(clamping: counters.capacityByteCount), ResponseStore.smallestCapacityByteCount)
      var options = options
      options.capacityByteCount = capacity
      let log = try existingRemovalLog(of: file, counters, isAlone: isAlone)
      let store = ResponseStore(
        directory: directory, file: file, removalLog: log, options: options, counts: counts)
      try store.beginCheckedReads()
      try store.growMap(toCapacity: capacity)
      file.index.attach(lastTransactionID: file.environment.lastTransactionID)
      return store
    } catch {
      throw failed(error)
    }
  }

  private func existingRemovalLog(
    of file: StoreFile, _ counters: Counters, isAlone: Bool
  ) throws(LMDBError) -> RemovalLog {
    let damage = LMDBError(code: .corrupted, function: RemovalLog.name)
    guard let log = RemovalLog.open(path: directory.removalLogPath, owner: file.owner) else { throw damage }
    guard isAlone else { return log }
    let isReadable: Bool
    do throws(RemovalLog.Failure) {
      isReadable = try log.recover(adopted: counters.adoptedRemoval, known: counters.knownRemoval)
    } catch {
      isReadable = false
    }
    if !isReadable { throw damage }
    return log
  }

  private func existingContents() throws(StoreError) -> StoreFile.Contents {
    do throws(LMDBError) {
      // The capacity stands in the file; until it is read, the map is as large as the file.
      return try StoreFile.open(
        directory: directory.path,
        mapByteCount: max(directory.dataFileByteCount, ResponseStore.smallestCapacityByteCount),
        capacityByteCount: options.capacityByteCount, completesNew: false)
    } catch {
      throw failed(error)
    }
  }

  private func failed(_ error: LMDBError) -> StoreError {
    error.isDamage
      ? damaged(reason: "the data is damaged (\(error))")
      : .storage(error, directory: directory.path, doing: "Opening the data")
  }

  private func damaged(reason: String) -> StoreError {
    StoreError(
      .damaged, directory: directory.path, reason: reason,
      remedy: "The next cache that is opened on the directory sets the data aside and starts empty")
  }
}

extension StoreError {
  static func missing(_ directory: String, reason: String) -> StoreError {
    StoreError(
      .missing, directory: directory, reason: reason,
      remedy: "See whether the path is right; a cache makes its store when it is first opened")
  }
}
