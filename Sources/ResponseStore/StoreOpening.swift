import Glibc
import LMDB

/// The steps from a directory to an open store: who else is there, what state is the file in, and what to do about it.
struct StoreOpening {
  let directory: StoreDirectory
  let options: ResponseStore.Options
  /// Of the store in whose place another is opened.
  let counts: StatisticsCounters

  func open() throws(StoreError) -> ResponseStore {
    if options.opensExistingOnly { try lookAtExistingData() }
    let isAlone = try directory.lockForOpening(timeout: options.openTimeout)
    try directory.checkProcessNamespace(isAlone: isAlone)
    // Before the lock file is opened, which clears what tells it.
    if isAlone { directory.noteHowItWasLeft() }
    if options.opensExistingOnly { return try openExisting(isAlone: isAlone) }
    try lookAtData(isAlone: isAlone)
    if isAlone, directory.noteOpening() >= 2 {
      log("Two openings in a row did not come back; the data is set aside and the store starts empty")
      try directory.setDataAside(as: "damaged")
    }
    if isAlone { try directory.mark() }
    // Whatever is thrown, the opening came back: only one that ended its process counts as failed.
    defer { directory.openingCameBack() }
    let store =
      try isAlone
      ? openData(isAlone: true, mayStartAnew: true) : openDataBesideOthers()
    try directory.finishOpening()
    return store
  }

  /// Before anything is mapped: LMDB looks at little of the file, and a bad page is a signal, not an error.
  private func lookAtData(isAlone: Bool) throws(StoreError) {
    let condition = DataFile.inspect(path: directory.dataPath, mapByteCount: mapByteCount)
    switch condition {
    case .missing, .empty:
      // Whoever is not alone finds the data, or somebody has taken it away under those who use it.
      if isAlone { return directory.endCheck() }
    case .unreadable(let error):
      throw .storage(error, directory: directory.path, doing: "Reading the data")
    case .notRegularFile:
      throw foreign(reason: "data.mdb is not a regular file")
    case _ where !directory.isOurs:
      throw foreign(reason: "data.mdb \(condition), and not a store of this library")
    case .otherOwner where options.allowsUntrustedDirectory:
      return
    case .otherOwner:
      throw StoreError(
        .untrustedDirectory, directory: directory.path, reason: "data.mdb \(condition)",
        remedy: "Choose a directory of your own, or allow untrusted directories")
    case .healthy where !directory.isCondemned:
      return isAlone ? try checkStructure() : ()
    case .tooShort where isAlone && !directory.isCondemned:
      // LMDB may count pages at the end that it never wrote. Whoever was to make the file longer may have died before.
      let pageCount = ResponseStore.pageCountCheckedAtOnce
      if DataFile.extendShortFile(path: directory.dataPath, maximumPageCount: pageCount) { return try checkStructure() }
    default:
      break
    }
    guard isAlone else {
      throw StoreError(
        .damagedAndInUse, directory: directory.path,
        reason: "the data was given up or is damaged (data.mdb \(condition)), and it is still open",
        remedy: "Close it, or end the processes that use the directory; the next one to open it starts anew")
    }
    log("The data was given up or is damaged (data.mdb \(condition)); it is set aside and the store starts empty")
    try directory.setDataAside(as: "damaged")
  }

  /// Looks at the pages that lead to records, if there is a reason; of a large file the eviction thread does, while it is in use.
  private func checkStructure() throws(StoreError) {
    guard let cause = directory.reasonToCheck else { return }
    directory.condemnedFlag?.clearSuspect()
    let pageCount = ResponseStore.pageCountCheckedAtOnce
    switch DataFile.findBrokenStructure(path: directory.dataPath, maximumPageCount: pageCount) {
    case .sound: directory.endCheck()
    case .unfinished: break
    case .broken(let reason):
      log("The data is damaged, and \(cause): \(reason). It is set aside and the store starts empty")
      try directory.setDataAside(as: "damaged")
    }
  }

  /// Opening writes, and so waits for others who do. One of them may be stopped and never end; so this waits on another
  /// thread, which closes what it has opened if it comes too late.
  private func openDataBesideOthers() throws(StoreError) -> ResponseStore {
    enum Progress {
      case underWay
      case ended(Result<ResponseStore, StoreError>)
      case givenUp
    }
    let progress = Monitor(Progress.underWay)
    let thread = BackgroundThread {
      let result: Result<ResponseStore, StoreError>
      do throws(StoreError) {
        result = .success(try openData(isAlone: false, mayStartAnew: false))
      } catch {
        result = .failure(error)
      }
      progress.update { if case .underWay = $0 { $0 = .ended(result) } }
    }
    guard let thread else { return try openData(isAlone: false, mayStartAnew: false) }
    var last = directory.dataChangeTime
    while true {
      let ended = progress.wait(timeout: options.openTimeout) { progress -> Result<ResponseStore, StoreError>? in
        if case .ended(let result) = progress { result } else { nil }
      }
      if let ended {
        _ = thread.join { $0.wait { $0 ? true : nil } ?? false }
        return try ended.get()
      }
      let newest = directory.dataChangeTime
      if newest == last { break }
      last = newest
    }
    progress.update { $0 = .givenUp }
    _ = thread.join { _ in false }
    throw StoreError(
      .busy, directory: directory.path, reason: "another process keeps the right to write for too long",
      remedy: "See whether a process that uses the directory is stopped, and let it go on or end it")
  }

  private func openData(isAlone: Bool, mayStartAnew: Bool) throws(StoreError) -> ResponseStore {
    let contents: StoreFile.Contents
    do throws(LMDBError) {
      contents = try StoreFile.open(
        directory: directory.path, mapByteCount: mapByteCount, capacityByteCount: options.capacityByteCount,
        damageHandler: { [directory] in directory.condemn() })
    } catch {
      if error.isDamage, isAlone, mayStartAnew {
        return try startAnew(as: "damaged", because: "the data is damaged (\(error))")
      }
      throw .storage(error, directory: directory.path, doing: "Opening the data")
    }
    switch contents {
    case .store(let file):
      do throws(StoreError) {
        return try ready(file, isAlone: isAlone)
      } catch {
        // The file is still referred to here, and must be closed before another takes its place.
        guard isAlone, mayStartAnew, let cause = error.cause, cause.isDamage, file.environment.close() else {
          throw error
        }
        return try startAnew(as: "damaged", because: "the data is damaged (\(cause))")
      }
    case .foreign:
      throw foreign(reason: "data.mdb is an LMDB file of another program")
    case .otherVersion(let version):
      guard isAlone, mayStartAnew else {
        throw StoreError(
          .otherVersionInUse, directory: directory.path,
          reason: "it holds format \(version), this library writes format \(StorageFormat.version), and it is in use",
          remedy: "End the processes of the other version, or choose another directory")
      }
      return try startAnew(as: "other-version", because: "the data has format \(version)")
    }
  }

  /// Fits the file to the capacity, and notes the pieces that dead writers left.
  private func ready(_ file: StoreFile, isAlone: Bool) throws(StoreError) -> ResponseStore {
    let removalLog = try openRemovalLog(of: file, isAlone: isAlone)
    let store = ResponseStore(
      directory: directory, file: file, removalLog: removalLog, options: options, counts: counts)
    do throws(LMDBError) {
      try store.beginCheckedReads()
      _ = try file.environment.clearStaleReaders()
      try store.notePartialBodies(isAlone: isAlone)
      try file.openIndex()
      // A small store is complete at once.
      if !store.isStructureUnchecked.load(ordering: .relaxed) { _ = try store.rebuildIndex() }
      try store.applyCapacity(options.capacityByteCount)
    } catch {
      // What is stored can be read on a full disk, too.
      guard error.isLackOfRoom else { throw .storage(error, directory: directory.path, doing: "Opening the data") }
      store.setLimits(capacityByteCount: options.capacityByteCount)
      log("The capacity could not be applied while opening: \(error)")
    }
    return store
  }

  private func startAnew(as suffix: String, because reason: String) throws(StoreError) -> ResponseStore {
    log("A new store is begun, as \(reason); the old data is set aside")
    try directory.setDataAside(as: suffix)
    return try openData(isAlone: true, mayStartAnew: false)
  }

  /// What the capacity permits; more if the file is larger already, from a time of a larger capacity: it holds good data,
  /// and its free pages go back to the file system.
  private var mapByteCount: Int {
    let pageByteCount = Int(getpagesize())
    let wanted = StorageFormat.mapByteCount(
      capacityByteCount: options.capacityByteCount, pageByteCount: pageByteCount)
    let present = directory.dataFileByteCount
    guard present > wanted else { return wanted }
    return (present + (1 << 20)) / pageByteCount * pageByteCount
  }

  func foreign(reason: String) -> StoreError {
    StoreError(
      .foreignFile, directory: directory.path, reason: reason,
      remedy: "Choose a directory of its own for the cache; the file was left as it is")
  }

  func log(_ text: String) {
    options.log("LMDBURLCache: \(text) (\(directory.path))")
  }
}
