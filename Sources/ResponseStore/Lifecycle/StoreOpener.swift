import CacheActivity
import Glibc
import LMDB

/// Opens a store: determines whether other processes use the directory, and checks and opens the data. If it is
/// unusable, ends its generation, and creates the next one.
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
      directory: directory.path, mapByteCount: mapByteCount(isFirst: false),
      fileByteCount: isInspection ? 0 : wantedMapByteCount)
    let isAlone = try directory.lockForOpening(
      timeout: options.openTimeout, createsFiles: !isInspection || options.makesLockFiles
    ) { () throws(StoreError) in
      directory.findGeneration()
      // Here, because an inspection changes nothing of another version.
      if isInspection { try checkFormat() }
      // Without the marker, the data may be of another program.
      if isInspection || !directory.hasMarker { try inspectDataFile() }
    }
    try directory.checkReadOnly(isAlone: isAlone)
    try directory.checkProcessNamespace(isAlone: isAlone)
    directory.findGeneration()
    if isAlone {
      directory.recordBoot()
      directory.noteCrash()
    }
    guard !isInspection else {
      // Again, because the status page, which is mapped now, names the generation.
      try inspectDataFile()
      let store = try openData(isFirst: isAlone)
      if isAlone { directory.recordData(lockFile: store.context.database.environment.lockFileIdentity) }
      try directory.finishOpening()
      return store
    }
    if isAlone { directory.countCrash() }
    try replaceFormerData(isAlone: isAlone)
    let isFirst = try replaceUnusableData(isAlone: isAlone)
    if isAlone {
      try directory.writeMarker()
      directory.statusPage?[.hasCrashed] = 1
    } else {
      directory.restoreMarker()
    }
    // Also after an error: only an open that ended the process counts as a crash.
    defer { if isAlone { directory.statusPage?[.hasCrashed] = 0 } }
    let store = try openOrReplaceData(isFirst: isFirst)
    store.context.activityFile?.enter()
    counts.activity.use(store.context.activityFile)
    if directory.isFirst(isAlone: isAlone) {
      directory.recordData(lockFile: store.context.database.environment.lockFileIdentity)
    }
    directory.countOpening(isFirst: directory.isFirst(isAlone: isAlone))
    directory.deleteEndedGenerations()
    try directory.finishOpening()
    return store
  }

  // MARK: Unusable data

  /// Ends the generation, so that the store starts empty in the next one.
  private func beginGeneration(because reason: String) {
    log("The store starts empty because \(reason)")
    directory.endGeneration()
    directory.findGeneration()
    directory.statusPage?[.crashCount] = 0
  }

  /// Replaces the data of format 5 and earlier, which was not in a folder.
  ///
  /// The present generation ends, too: a program with the earlier format may have purged in between.
  private func replaceFormerData(isAlone: Bool) throws(StoreError) {
    guard directory.hasFormerData else { return }
    guard directory.hasMarker else { throw formerData() }
    guard isAlone else { throw .otherVersionInUse(directory.path, "an earlier format") }
    beginGeneration(because: "the data has an earlier format")
    directory.deleteFormerData()
  }

  /// Ends the generation if its data cannot be opened, crashes processes, or is far too large.
  ///
  /// - Returns: Whether no other process has the generation open.
  private func replaceUnusableData(isAlone: Bool) throws(StoreError) -> Bool {
    guard directory.isFirst(isAlone: isAlone) else {
      // The others have checked the file. They would not see changes of a new file with this name.
      guard directory.dataFileByteCount == 0 else { return false }
      beginGeneration(because: "data.mdb was deleted while it was in use")
      return true
    }
    do throws(StoreError) {
      try inspectDataFile()
    } catch {
      guard error.code == .corrupt else { throw error }
      beginGeneration(because: error.reason)
    }
    if isAlone, directory.hasCrashedRepeatedly {
      beginGeneration(because: "three processes in a row ended within a transaction or while they opened the data")
    }
    if isAlone, isCapacityTooLowForFiles {
      beginGeneration(because: "the files are far larger than the capacity")
    }
    return true
  }

  /// Opens the data, or creates the next generation if it is corrupt or has another format, or if another process ends
  /// it or deletes its file meanwhile.
  private func openOrReplaceData(isFirst: Bool) throws(StoreError) -> ResponseStore {
    var isFirst = isFirst
    for _ in 0..<Self.maximumReplacementCount {
      try directory.makeDataDirectory()
      do throws(StoreError) {
        return try isFirst ? openData(isFirst: true) : openSharedData()
      } catch {
        switch error.code {
        case _ where !directory.isGenerationInUse: directory.findGeneration()
        // The process that has deleted it, or notices that, has not ended the generation yet.
        case _ where error.cause?.code.rawValue == ENOENT && directory.dataFileByteCount == 0:
          beginGeneration(because: "data.mdb was deleted while it was opened")
        case .corrupt: beginGeneration(because: error.reason)
        case .unsupportedFormat where isFirst: beginGeneration(because: error.reason)
        case .unsupportedFormat: throw .otherVersionInUse(directory.path, "another format")
        default: throw error
        }
        // This process has the open lock, so no other one has the next generation open.
        isFirst = true
      }
    }
    try directory.makeDataDirectory()
    return try openData(isFirst: true)
  }

  private static let maximumReplacementCount = 3

  /// Checks the file before it is mapped, because LMDB checks little of it and crashes on a corrupt page.
  ///
  /// - Throws: ``StoreError``, with the code `corrupt` for a file that must be replaced.
  func inspectDataFile() throws(StoreError) {
    if isInspection || !directory.hasMarker, directory.hasFormerData { throw formerData() }
    let condition = DataFile.inspect(
      path: directory.dataPath, mapByteCount: isInspection ? .max : mapByteCount(isFirst: false))
    switch condition {
    case .missing, .empty:
      guard isInspection else { return }
      throw .missing(
        directory.path,
        reason: directory.generation == 1
          ? "there is no store in it" : "its data has failed, and no cache has opened it since")
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
    case .healthy:
      return
    default:
      throw corrupt(reason: "data.mdb \(condition)")
    }
  }

  /// Throws if the processes that used the directory last had another format. A store that is used finds that out in
  /// the data, and replaces them.
  private func checkFormat() throws(StoreError) {
    guard let format = directory.recordedFormat, format != StorageFormat.version else { return }
    throw unsupportedFormat(format == 0 ? "an earlier format" : "format \(format)")
  }

  // MARK: Opening

  /// Opens a directory that other processes use.
  ///
  /// Opening writes, so it waits for other writers, which may be suspended. Another thread therefore opens the data. If
  /// it takes too long, this call throws, and the thread closes the data again.
  private func openSharedData() throws(StoreError) -> ResponseStore {
    let opened = Monitor<Result<ResponseStore, StoreError>?>(nil)
    let thread = BackgroundThread { [weak opened] in
      let result = Result { () throws(StoreError) in try openData(isFirst: false) }
      opened?.update { $0 = result }
    }
    guard let thread else { return try openData(isFirst: false) }
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
  /// - Parameter isFirst: Whether no other process has the generation open.
  private func openData(isFirst: Bool) throws(StoreError) -> ResponseStore {
    let endGeneration: @Sendable () -> Void = { [directory] in directory.endGeneration() }
    let mapByteCount = mapByteCount(isFirst: isFirst)
    if isFirst, !isInspection, directory.dataFileByteCount > mapByteCount {
      // After a lower capacity. In a longer file, other processes would have a larger map.
      _ = directory.setDataFileByteCount(mapByteCount)
    }
    let contents: RecordDatabase.Contents
    do throws(LMDBError) {
      contents = try RecordDatabase.open(
        directory: directory.dataDirectory, indexNumber: directory.indexNumber, mapByteCount: mapByteCount,
        capacityByteCount: options.capacityByteCount, completesNew: !isInspection, isReadOnly: directory.isReadOnly,
        lockFile: directory.recordedLockFile, corruptionHandler: isInspection ? nil : endGeneration)
    } catch {
      if error.code == .lockFileReplaced { throw corrupt(reason: "lock.mdb was deleted while it was in use") }
      throw failure(error)
    }
    switch contents {
    case .store(let database):
      openActivity(isFirst: isFirst)
      return try ready(database, isFirst: isFirst)
    case .foreign:
      // If the directory has the marker of a store, the file is a store's data file that lost its tables.
      guard directory.hasMarker else { throw foreign(reason: "data.mdb is an LMDB file of another program") }
      throw corrupt(reason: "the data is corrupt (a table is missing)")
    case .otherVersion(let version):
      throw unsupportedFormat("format \(version)")
    }
  }

  /// Fits the file to the capacity, and notes orphaned chunks.
  private func ready(_ database: RecordDatabase, isFirst: Bool) throws(StoreError) -> ResponseStore {
    let removalLog = try openRemovalLog(of: database, isFirst: isFirst)
    database.bodiesInProgress.useLocks(of: directory.directoryLock)
    var options = options
    if isInspection { options.capacityByteCount = try storedCapacityByteCount(of: database) }
    let context = StoreContext(
      directory: directory, database: database, removalLog: removalLog, options: options, counts: counts)
    let store = ResponseStore(context)
    do throws(LMDBError) {
      if isInspection {
        try store.space.growMap(toCapacity: options.capacityByteCount, extendsFile: false)
        try store.indexMaintainer.prepareInspection(isAlone: isFirst)
      } else {
        try database.environment.clearStaleReaders()
        try database.noteUnfinishedBodies(isAlone: isFirst)
        try store.indexMaintainer.prepare(isAlone: isFirst)
        try store.capacity.apply(options.capacityByteCount)
      }
    } catch {
      // On a full disk, open anyway: the stored responses can still be read.
      guard error.isOutOfSpace, !isInspection else { throw failure(error) }
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
      throw failure(error)
    }
  }

  /// Maps the counters that all processes share. Without them, for example on a full disk, the store works as usual.
  private func openActivity(isFirst: Bool) {
    let creates = !isInspection
    counts.activity.use(ActivityFile.open(path: directory.path(of: ActivityFile.name), creates: creates))
    if creates { counts.activity.add(1, .opens) }
    // No process watches.
    if creates, isFirst { unlink(directory.path(of: EventWatch.fileName)) }
  }

  /// Whether the data file is so much larger than the capacity that its free list would take much of the capacity, or
  /// the removal log is. Its size follows from the capacity with which the generation began.
  private var isCapacityTooLowForFiles: Bool {
    let (byteCount, pageByteCount) = (DataFile.usedByteCount(path: directory.dataPath), Int(getpagesize()))
    let minimum = StorageFormat.minimumPageCount(filePageCount: byteCount / pageByteCount)
    return byteCount > wantedMapByteCount && minimum * pageByteCount > wantedMapByteCount
      || StoreDirectory.byteCount(of: directory.removalLogPath) > wantedMapByteCount / 8
  }

  private var wantedMapByteCount: Int {
    StorageFormat.mapByteCount(capacityByteCount: options.capacityByteCount, pageByteCount: Int(getpagesize()))
  }

  /// Returns the map size for the capacity, or for an oversized file, whose free pages are returned later.
  ///
  /// - Parameter isFirst: Whether no other process has the generation open, with a map as long as the file.
  private func mapByteCount(isFirst: Bool) -> Int {
    // The capacity of a store that is only inspected is in the file.
    if isInspection { return max(directory.dataFileByteCount, ResponseStore.minimumCapacityByteCount) }
    guard isFirst else { return max(directory.dataFileByteCount, wantedMapByteCount) }
    let used = DataFile.usedByteCount(path: directory.dataPath)
    guard used > wantedMapByteCount else { return wantedMapByteCount }
    let pageByteCount = Int(getpagesize())
    return (used + (1 << 20)) / pageByteCount * pageByteCount
  }

  private func foreign(reason: String) -> StoreError {
    StoreError(
      .notAStore, directory: directory.path, reason: reason,
      remedy: "Choose a directory that only the cache uses; the file was not changed")
  }

  /// The error for data that must be replaced. An inspection throws it.
  func corrupt(reason: String, cause: LMDBError? = nil) -> StoreError {
    StoreError(
      .corrupt, directory: directory.path, reason: reason,
      remedy: "The next cache that is opened on the directory starts empty", cause: cause)
  }

  /// The error of an LMDB call.
  func failure(_ error: LMDBError) -> StoreError {
    error.isCorruption
      ? corrupt(reason: "the data is corrupt (\(error))", cause: error)
      : .storage(error, directory: directory.path, doing: "Opening the data")
  }

  private func unsupportedFormat(_ found: String) -> StoreError {
    StoreError(
      .unsupportedFormat, directory: directory.path,
      reason: "the data has \(found), and this library knows format \(StorageFormat.version)",
      remedy: "Use the version that wrote it")
  }

  /// The error for data that is not in a folder.
  private func formerData() -> StoreError {
    directory.hasMarker
      ? unsupportedFormat("an earlier format")
      : foreign(reason: "data.mdb is of another program, and not a store of this library")
  }

  func log(_ text: String) {
    options.log("LMDBURLCache: \(text) (\(directory.path))")
  }
}
