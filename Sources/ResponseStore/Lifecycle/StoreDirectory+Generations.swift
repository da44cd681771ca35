import Glibc
import LMDB

/// The generations of a directory's data, and the marker of a directory of this library.
extension StoreDirectory {
  // MARK: The marker

  /// A process of format 5 or earlier gave the marker this name when its data had failed.
  static let formerMarkerName = "LMDBURLCache.condemned"
  static let markerName = "LMDBURLCache.store"

  /// Whether the directory is this library's.
  var hasMarker: Bool { Self.hasMarker(path) }

  /// Whether a directory is this library's: it has the marker, or a data file with the library's tables.
  ///
  /// Programs that delete old files take the marker first, because no process changes it.
  static func hasMarker(_ path: String) -> Bool {
    if hasFile(markerName, in: path) || hasFile(formerMarkerName, in: path) { return true }
    let folders = [path] + generations(in: path).map { folder($0, in: path) }
    return folders.contains {
      DataFile.tableNames(path: $0 + "/" + DataFile.name).isSuperset(of: StorageFormat.permanentTables)
    }
  }

  /// Marks the directory as this library's. Call this before there is data, which would look foreign without the
  /// marker.
  func writeMarker() throws(StoreError) {
    guard !hasFile(Self.markerName) else { return }
    try write(Self.markerText, to: Self.markerName)
    Self.synchronize(path)
  }

  /// Writes the marker again if it was deleted.
  func restoreMarker() {
    guard isInPlace else { return }
    // If it cannot be written, the data file still shows that the directory is this library's.
    try? writeMarker()
  }

  // MARK: Generations

  static let dataPrefix = "data-"

  func folder(_ number: UInt64) -> String { Self.folder(number, in: path) }

  private static func folder(_ number: UInt64, in path: String) -> String { path + "/" + dataPrefix + "\(number)" }

  /// The numbers of the generations in a directory. Usually there is one.
  static func generations(in directory: String) -> [UInt64] {
    names(in: directory).compactMap {
      $0.hasPrefix(dataPrefix) ? UInt32($0.dropFirst(dataPrefix.count)).map { UInt64($0) } : nil
    }
  }

  /// The path of the data file in use in a directory; nil if it is not this library's. An earlier format has it in the
  /// directory.
  static func dataFile(in path: String) -> String? {
    guard hasMarker(path) else { return nil }
    if hasFile(DataFile.name, in: path) { return path + "/" + DataFile.name }
    return generations(in: path).max().map { folder($0, in: path) + "/" + DataFile.name }
  }

  /// Whether the generation has not ended.
  var isGenerationInUse: Bool { statusPage?[.generation] == generation }

  /// Whether a living process may have the generation open. Call this with the open lock.
  func isFirst(isAlone: Bool) -> Bool { isAlone || lockedStatusPage[.openedGeneration] != generation }

  /// Ends the generation for all processes and for good: lookups miss, and the next process that opens the directory
  /// creates an empty store. Takes no disk space.
  func endGeneration() {
    lockedStatusPage.end(generation: generation)
    // Another directory may have this path by now, with data of another store.
    guard isInPlace else { return }
    unlink(dataPath)
    Self.synchronize(dataDirectory)
  }

  /// Creates the folder of the generation, unless it exists. Call this with the open lock.
  func makeDataDirectory() throws(StoreError) {
    guard mkdir(dataDirectory, 0o700) == 0 else {
      guard errno == EEXIST else { throw .unusable(path, doing: "making \(dataDirectory)", errno) }
      return
    }
    Self.synchronize(path)
    indexNumber.value = 0
    lockedStatusPage[.plainGeneration] = generation + 1
  }

  /// Deletes the files of generations that have ended. Call this with the open lock.
  func deleteEndedGenerations() {
    for number in Self.generations(in: path) where number < generation {
      let folder = folder(number)
      for name in Self.names(in: folder) { unlink(folder + "/" + name) }
      rmdir(folder)
    }
  }

  /// The files of a store of format 5 or earlier, the data first.
  static let formerNames = [
    DataFile.name, formerMarkerName, "open.lock", "lock.mdb", RemovalLog.name, IndexLayout.fileName,
    "LMDBURLCache.uses",
    "data.mdb.damaged", "data.mdb.other-version", "data.mdb.oversized",
  ]

  /// Whether the directory has the data file of an earlier format, or of another program.
  var hasFormerData: Bool { hasFile(DataFile.name) || hasFile(Self.formerMarkerName) }

  /// Deletes the files of an earlier format. Call this while no other process uses the directory.
  func deleteFormerData() {
    for name in Self.formerNames { unlink(path(of: name)) }
  }

  /// Whether the path still leads to this directory.
  var isInPlace: Bool { DirectoryIdentity(path: path) == identity }
}
