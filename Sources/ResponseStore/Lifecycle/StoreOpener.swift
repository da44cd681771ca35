import CacheActivity
import Glibc
import LMDB

/// Opens a store: determines whether other processes use the directory, and checks, opens or replaces the data file.
///
/// A store that is only inspected is opened in the same way, except that nothing is created, repaired or replaced.
struct StoreOpener {
  let directory: StoreDirectory
  let options: ResponseStore.Options
  /// The statistics of a failed store that is reopened.
  let counts: StoreCounters
  /// Whether the store is only inspected.
  var isInspection: Bool { options.opensExistingOnly }

  func open() throws(StoreError) -> ResponseStore {
    guard getpagesize() <= DataFile.maximumPageByteCount else {
      throw StoreError(
        .unsupportedSystem, directory: directory.path,
        reason: "the pages of this machine have \(getpagesize()) bytes, and those of LMDB at most 32,768",
        remedy: "Use a kernel with pages of 4 KiB")
    }
    try ProcessLimits.check(
      directory: directory.path, mapByteCount: mapByteCount,
      fileByteCount: isInspection ? 0 : wantedMapByteCount)
    // Do this before even a lock file is created.
    if isInspection { try inspectDataFile(isAlone: false) }
    let isAlone = try directory.lockForOpening(
      timeout: options.openTimeout, createsFiles: !isInspection || options.makesLockFiles)
    try directory.checkReadOnly(isAlone: isAlone)
    try directory.checkProcessNamespace(isAlone: isAlone)
    if isAlone {
      directory.recordBoot()
      directory.countCrash(isInspection: isInspection)
    }
    // Again for an inspection: the status page, which is mapped now, has a flag of its own.
    try inspectDataFile(isAlone: isAlone)
    guard !isInspection else {
      let store = try openData(isAlone: isAlone, mayRecreate: true)
      try directory.finishOpening()
      return store
    }
    if isAlone, directory.hasCrashedRepeatedly {
      log(
        "Three processes in a row ended within a transaction or while opening the store; the data file was quarantined "
          + "and the store starts empty")
      try directory.quarantineData(as: "damaged")
    }
    if isAlone, isCapacityTooLowForFile {
      log("The store starts empty because the data file is far larger than the capacity; it was quarantined")
      try directory.quarantineData(as: "oversized")
    }
    if isAlone { try directory.writeMarker() }
    if isAlone { directory.statusPage?[.hasCrashed] = 1 }
    // Also after an error: only an open that ended the process counts as a crash.
    defer { if isAlone { directory.statusPage?[.hasCrashed] = 0 } }
    let store = try isAlone ? openData(isAlone: true, mayRecreate: true) : openSharedData()
    store.context.activityFile?.enter()
    counts.activity.use(store.context.activityFile)
    directory.countOpening(isAlone: isAlone)
    try directory.finishOpening()
    return store
  }

  /// Checks the file before it is mapped, because LMDB checks little of it and crashes on a corrupt page.
  func inspectDataFile(isAlone: Bool) throws(StoreError) {
    let condition = DataFile.inspect(path: directory.dataPath, mapByteCount: isInspection ? .max : mapByteCount)
    switch condition {
    case .missing, .empty:
      if isInspection { throw .missing(directory.path, reason: "there is no store in it") }
      // If other processes use the directory, the file was deleted while in use.
      if isAlone { return }
    case .unreadable(let error):
      throw .storage(error, directory: directory.path, doing: "Reading the data")
    case .notRegularFile:
      throw foreign(reason: "data.mdb is not a regular file")
    case _ where !directory.hasMarker:
      throw foreign(reason: "data.mdb \(condition), and not a store of this library")
    case .otherOwner where options.allowsUntrustedDirectory:
      return
    case .otherOwner:
      throw StoreError(
        .untrustedDirectory, directory: directory.path, reason: "data.mdb \(condition)",
        remedy: "Run as that user, or choose another directory. A program can also set allowsUntrustedDirectory")
    case .healthy where !directory.isMarkedFailed:
      return
    case .tooShort where isAlone && !isInspection && !directory.isMarkedFailed:
      // LMDB may count pages at the end that it never wrote. A process may have been killed before it extended the
      // file.
      if DataFile.extendFileToLastPage(path: directory.dataPath) { return }
    default:
      break
    }
    if isInspection {
      throw corrupt(reason: directory.isMarkedFailed ? "the data is marked as failed" : "data.mdb \(condition)")
    }
    guard isAlone else {
      throw StoreError(
        .corruptAndInUse, directory: directory.path,
        reason: "the data failed or is corrupt (data.mdb \(condition)), and it is still open",
        remedy: "Close it, or end the processes that use the directory; the next one to open it starts empty")
    }
    log(
      "The data file is unusable or marked as failed (data.mdb \(condition)); it was quarantined and the store starts empty"
    )
    try directory.quarantineData(as: "damaged")
  }

  /// Opens a directory that other processes use.
  ///
  /// Opening writes, so it waits for other writers, which may be suspended. Another thread therefore opens the data. If
  /// it takes too long, this call throws, and the thread closes the data again.
  private func openSharedData() throws(StoreError) -> ResponseStore {
    let opened = Monitor<Result<ResponseStore, StoreError>?>(nil)
    let thread = BackgroundThread { [weak opened] in
      let result = Result { () throws(StoreError) in try openData(isAlone: false, mayRecreate: false) }
      opened?.update { $0 = result }
    }
    guard let thread else { return try openData(isAlone: false, mayRecreate: false) }
    var last = directory.dataChangeTime
    while true {
      if let result = opened.wait(timeout: options.openTimeout, for: { $0 }) {
        _ = thread.join { $0.wait { $0 ? true : nil } ?? false }
        return try result.get()
      }
      let newest = directory.dataChangeTime
      if newest == last { break }
      last = newest
    }
    _ = thread.join { _ in false }
    throw .busy(directory.path, reason: "another process held the write lock for too long")
  }

  /// Opens the data file, its removal log and the shared counters.
  ///
  /// - Parameter mayRecreate: Whether an unusable file is quarantined and replaced; only if this process is alone.
  private func openData(isAlone: Bool, mayRecreate: Bool) throws(StoreError) -> ResponseStore {
    let markFailed: @Sendable () -> Void = { [directory] in directory.markFailed() }
    let contents: RecordDatabase.Contents
    do throws(LMDBError) {
      contents = try RecordDatabase.open(
        directory: directory.path, statusPage: directory.lockedStatusPage, mapByteCount: mapByteCount,
        capacityByteCount: options.capacityByteCount, completesNew: !isInspection, isReadOnly: directory.isReadOnly,
        corruptionHandler: isInspection ? nil : markFailed)
    } catch {
      if error.isCorruption, mayRecreate {
        return try recreate(as: "damaged", because: "the data is corrupt (\(error))")
      }
      throw .storage(error, directory: directory.path, doing: "Opening the data")
    }
    switch contents {
    case .store(let database):
      openActivity(isAlone: isAlone)
      do throws(StoreError) {
        return try ready(database, isAlone: isAlone)
      } catch {
        // Close the file before another one replaces it.
        guard mayRecreate, let cause = error.cause, cause.isCorruption, database.environment.close() else {
          throw error
        }
        return try recreate(as: "damaged", because: "the data is corrupt (\(cause))")
      }
    case .foreign:
      // If the directory has the marker of a store, the file is a store's data file that lost its tables.
      guard mayRecreate, directory.hasMarker else {
        throw foreign(reason: "data.mdb is an LMDB file of another program")
      }
      return try recreate(as: "damaged", because: "the data is corrupt (a table is missing)")
    case .otherVersion(let version) where isInspection:
      throw StoreError(
        .unsupportedFormat, directory: directory.path,
        reason: "it holds format \(version), this library knows format \(StorageFormat.version)",
        remedy: "Use the version that wrote it")
    case .otherVersion(let version):
      guard mayRecreate else {
        throw StoreError(
          .otherVersionInUse, directory: directory.path,
          reason: "it holds format \(version), this library writes format \(StorageFormat.version), and it is in use",
          remedy: "End the processes of the other version, or choose another directory")
      }
      return try recreate(as: "other-version", because: "the data has format \(version)")
    }
  }

  /// Fits the file to the capacity, and notes orphaned chunks.
  private func ready(_ database: RecordDatabase, isAlone: Bool) throws(StoreError) -> ResponseStore {
    let removalLog = try openRemovalLog(of: database, isAlone: isAlone)
    var options = options
    if isInspection { options.capacityByteCount = try storedCapacityByteCount(of: database) }
    let context = StoreContext(
      directory: directory, database: database, removalLog: removalLog, options: options, counts: counts)
    let store = ResponseStore(context)
    do throws(LMDBError) {
      if isInspection {
        try store.space.growMap(toCapacity: options.capacityByteCount)
        try store.indexMaintainer.prepareInspection(isAlone: isAlone)
      } else {
        try database.environment.clearStaleReaders()
        try database.noteUnfinishedBodies(isAlone: isAlone)
        try store.indexMaintainer.prepare(isAlone: isAlone)
        try store.capacity.apply(options.capacityByteCount)
      }
    } catch {
      // On a full disk, open anyway: the stored responses can still be read.
      guard error.isOutOfSpace, !isInspection else {
        throw .storage(error, directory: directory.path, doing: "Opening the data")
      }
      store.space.setBudget(capacityByteCount: options.capacityByteCount)
      log("The capacity could not be applied while opening: \(error)")
    }
    return store
  }

  /// Returns the store's own capacity.
  private func storedCapacityByteCount(of database: RecordDatabase) throws(StoreError) -> Int {
    do throws(LMDBError) {
      return max(Int(clamping: try database.counters().capacityByteCount), ResponseStore.minimumCapacityByteCount)
    } catch {
      throw .storage(error, directory: directory.path, doing: "Opening the data")
    }
  }

  /// Maps the counters that all processes share. Without them, for example on a full disk, the store works as usual.
  private func openActivity(isAlone: Bool) {
    let creates = !isInspection
    counts.activity.use(ActivityFile.open(path: directory.path(of: ActivityFile.name), creates: creates))
    if creates { counts.activity.add(1, .opens) }
    // No process watches.
    if creates, isAlone { unlink(directory.path(of: EventWatch.fileName)) }
  }

  private func recreate(as suffix: String, because reason: String) throws(StoreError) -> ResponseStore {
    if isInspection { throw corrupt(reason: reason) }
    log("The store starts empty because \(reason); the old data file was quarantined")
    try directory.quarantineData(as: suffix)
    return try openData(isAlone: true, mayRecreate: false)
  }

  /// Whether the data file is so much larger than the capacity that its free list would take much of the capacity.
  private var isCapacityTooLowForFile: Bool {
    let (byteCount, pageByteCount) = (directory.dataFileByteCount, Int(getpagesize()))
    let minimum = StorageFormat.minimumPageCount(filePageCount: byteCount / pageByteCount)
    return byteCount > wantedMapByteCount && minimum * pageByteCount > wantedMapByteCount
  }

  private var wantedMapByteCount: Int {
    StorageFormat.mapByteCount(capacityByteCount: options.capacityByteCount, pageByteCount: Int(getpagesize()))
  }

  /// The map size for the capacity, or for an oversized file, whose free pages are returned later.
  private var mapByteCount: Int {
    let present = directory.dataFileByteCount
    // The capacity of a store that is only inspected is in the file.
    if isInspection { return max(present, ResponseStore.minimumCapacityByteCount) }
    let pageByteCount = Int(getpagesize())
    let wanted = wantedMapByteCount
    guard present > wanted else { return wanted }
    return (present + (1 << 20)) / pageByteCount * pageByteCount
  }

  private func foreign(reason: String) -> StoreError {
    StoreError(
      .notAStore, directory: directory.path, reason: reason,
      remedy: "Choose a directory that only the cache uses; the file was not changed")
  }

  /// The error for data that an inspection must not replace.
  func corrupt(reason: String) -> StoreError {
    StoreError(
      .corrupt, directory: directory.path, reason: reason,
      remedy: "The next cache that is opened on the directory quarantines the data and starts empty")
  }

  func log(_ text: String) {
    options.log("LMDBURLCache: \(text) (\(directory.path))")
  }
}
