import CacheModel
import Glibc
import LMDB
import SystemFiles

/// The store's directory: its owner, its files, and whether this process is alone with them.
///
/// | File | Purpose |
/// |---|---|
/// | `data-N/` | the data of generation N |
/// | `data-N/data.mdb`, `data-N/lock.mdb` | LMDB's |
/// | `data-N/LMDBURLCache.removals` | ``RemovalLog`` |
/// | `data-N/LMDBURLCache.index` | ``RecordIndex`` |
/// | `LMDBURLCache.store` | marks a directory of this library |
/// | `LMDBURLCache.counters` | ``ActivityFile`` |
/// | `LMDBURLCache.events` | ``EventRing``, while a process watches and afterwards |
/// | `LMDBURLCache.fleet` | the state of the machine in a fleet, of the module RedisTier |
/// | `users.lock` | locked shared while the directory is in use; has the ``SharedStatusPage`` |
///
/// The directory itself is locked (`flock`) while a process opens it, so that opens take turns. A byte of it is locked
/// shared while a process uses it, which shows after the deletion of `users.lock`.
///
/// Data is never repaired. If it fails, its **generation** ends: the status page gets the next number, so every lookup
/// and write of the old one fails, and its data file is deleted. The next process that opens the directory creates the
/// folder of the new generation. Processes that still read the old data do not delay it.
///
/// `@unchecked Sendable`: the descriptors, the status page and the generation are set while opening, on one thread.
final class StoreDirectory: @unchecked Sendable {
  static let markerText = "LMDBURLCache response store\n"
  /// The file with the ``SharedStatusPage``.
  static let lockFileName = "users.lock"

  /// The absolute path, which stays valid when the process changes its working directory.
  let path: String
  /// Device and inode, which are equal for two paths of one directory.
  let identity: DirectoryIdentity
  /// Whether the directory is on a read-only file system.
  let isReadOnly: Bool
  /// The directory, for the open lock and the lock of its users.
  var directoryLock: LockDescriptor?
  var usersLock: LockDescriptor?
  /// Whether no other process used the directory when this process locked it.
  var isAlone = false
  /// The file of ``usersLock``.
  var usersLockIdentity: DirectoryIdentity?
  /// The number of the generation that is opened; see ``findGeneration()``.
  private(set) var generation: UInt64 = 0
  /// The page that all processes share; nil before ``lockForOpening(timeout:createsFiles:)``.
  var statusPage: SharedStatusPage?
  /// Whether a process that was alone has already opened the directory since the machine started, so that the page
  /// cache has what processes have mapped since. False without the boot's ID, and before ``recordBoot()``.
  var isSameBoot = false
  /// The ``statusPage``, once the directory was locked.
  var lockedStatusPage: SharedStatusPage {
    guard let statusPage else { preconditionFailure("The directory is opened without its locks") }
    return statusPage
  }

  /// Creates the directory (0700) and its parents, if `makesDirectory`, and checks that it can be trusted.
  init(path givenPath: String, allowsUntrusted: Bool, makesDirectory: Bool = true) throws(StoreError) {
    path = try DirectoryPath.absolute(givenPath)
    if makesDirectory { try DirectoryPath.make(path) }
    var status = stat()
    guard lstat(path, &status) == 0 else {
      guard makesDirectory || (errno != ENOENT && errno != ENOTDIR) else {
        throw .missing(path, reason: "there is no such directory")
      }
      throw .unusable(path, doing: "examining the directory", errno)
    }
    if status.st_mode & S_IFMT == S_IFLNK {
      guard allowsUntrusted else {
        throw StoreError(
          .untrustedDirectory, directory: path, reason: "the directory is a symbolic link",
          remedy: "Specify the path that it points to. A program can also set allowsUntrustedDirectory")
      }
      guard stat(path, &status) == 0 else { throw .unusable(path, doing: "following the link", errno) }
    }
    guard status.st_mode & S_IFMT == S_IFDIR else {
      throw StoreError(
        .unusableDirectory, directory: path, reason: "a file has the name of the directory",
        remedy: "Specify the path of the cache's directory")
    }
    guard status.st_uid == geteuid() || allowsUntrusted else {
      throw StoreError(
        .untrustedDirectory, directory: path, reason: "the directory belongs to another user",
        remedy: "Run as that user, or choose another directory. A program can also set allowsUntrustedDirectory")
    }
    guard let identity = DirectoryIdentity(path: path) else { throw .unusable(path, doing: "examining it", errno) }
    self.identity = identity
    isReadOnly = faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0 && errno == EROFS && !makesDirectory
    guard faccessat(AT_FDCWD, path, isReadOnly ? R_OK | X_OK : R_OK | W_OK | X_OK, AT_EACCESS) == 0 else {
      throw .unusable(path, doing: "reading and writing the directory", errno)
    }
    findGeneration()
  }

  func path(of name: String) -> String { path + "/" + name }
  var dataDirectory: String { folder(generation) }
  /// The path of a file of the generation.
  func dataPath(of name: String) -> String { dataDirectory + "/" + name }
  var dataPath: String { dataPath(of: DataFile.name) }
  var removalLogPath: String { dataPath(of: RemovalLog.name) }

  /// Determines the generation in use: the highest one, because the status page may be older than the folders, for
  /// example after a power failure. Call it again with the open lock.
  func findGeneration() {
    // A damaged page can have any number.
    let noted = statusPage.flatMap { UInt32(exactly: $0[.generation]) } ?? 0
    let highest = Self.generations(in: path).max() ?? 0
    generation = max(1, UInt64(noted), highest)
    // A new page does not know that the generation has ended. Processes may still have its other files open.
    if noted == 0, highest == generation, !Self.hasFile(DataFile.name, in: dataDirectory) { generation += 1 }
    if let statusPage, statusPage[.generation] != generation { statusPage[.generation] = generation }
  }

  /// Throws if the directory is on a read-only file system and other processes use it, through another mount.
  ///
  /// LMDB could not protect the pages that this process reads.
  func checkReadOnly(isAlone: Bool) throws(StoreError) {
    guard isReadOnly, !isAlone else { return }
    throw .busy(
      path, reason: "it is on a read-only file system, and other processes use it",
      remedy: "Use a mount that can be written, or end the processes that use the directory")
  }

  /// Throws the error of a change to a directory on a read-only file system.
  func checkWritable() throws(StoreError) {
    guard isReadOnly else { return }
    throw StoreError(
      .unusableDirectory, directory: path, reason: "it is on a read-only file system",
      remedy: "Use a mount that can be written")
  }

  /// Throws if processes of another PID namespace have the directory open.
  ///
  /// LMDB identifies readers by their process IDs, so it could overwrite pages that they read. A process that is alone
  /// records its own namespace. A process without `/proc` is allowed.
  func checkProcessNamespace(isAlone: Bool) throws(StoreError) {
    var status = stat()
    let own = stat("/proc/self/ns/pid", &status) == 0 ? UInt64(status.st_ino) : 0
    guard let statusPage else { return }
    if isAlone { statusPage[.processNamespace] = own }
    let others = statusPage[.processNamespace]
    guard own != 0, others != 0, own != others else { return }
    throw StoreError(
      .otherProcessNamespace, directory: path,
      reason: "it is in use by a process of another PID namespace, for example of another container",
      remedy: "Run the processes in one PID namespace, or use one directory per container")
  }

  /// Counts a process that will store responses. Call this with the open lock, before it stores any.
  ///
  /// - Parameter isFirst: Whether no other process has this generation open.
  func countOpening(isFirst: Bool) {
    let page = lockedStatusPage
    if isFirst { page[.keySpaceSeed] = .random(in: .min ... .max) }
    page[.openCount] = isFirst ? 1 : page[.openCount] + 1
    page[.openedGeneration] = generation
  }

  /// Whether other processes may have this generation open. They may have closed it again.
  var mayHaveOtherUsers: Bool { statusPage?[.openCount] != 1 }

  // MARK: The claim of a new index file

  /// A position behind the end of the file.
  private var indexClaim: Range<Int> { (1 << 40 + Int(generation))..<(1 << 40 + Int(generation) + 1) }

  /// The number of the index file in use.
  var indexNumber: SharedWord { lockedStatusPage.indexNumber }

  /// Claims the file of a new index for this process; see ``IndexMaintainer``.
  ///
  /// - Returns: False if a living process has claimed it.
  func claimIndex() -> Bool { usersLock?.lockBytes(indexClaim) ?? false }

  /// Ends the claim of this process.
  func releaseIndexClaim() { usersLock?.unlockBytes(indexClaim) }

  // MARK: Files

  /// Syncs a directory, so that the names in it are durable. Ignores errors.
  static func synchronize(_ path: String) {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard descriptor >= 0 else { return }
    fsync(descriptor)
    close(descriptor)
  }

  // MARK: Crashes

  /// Records this boot, and whether a process that was alone has opened the directory in it before.
  ///
  /// Call this while no other process uses the directory.
  func recordBoot() {
    guard let flag = statusPage else { return }
    isSameBoot = Boot.known == Boot(high: flag[.bootHigh], low: flag[.bootLow])
    // An index belongs to one boot, because nothing syncs it.
    if !isSameBoot { indexNumber.value = 0 }
    if let boot = Boot.known { (flag[.bootHigh], flag[.bootLow]) = (boot.high, boot.low) }
  }

  /// Notes a crash of the last process: it ended within a transaction, or before the data was open.
  ///
  /// Only then can corrupt pages have crashed it. Call this while no other process uses the directory, before LMDB
  /// opens the lock file and clears its traces.
  func noteCrash() {
    if AbandonedTransaction.isRecorded(inLockFile: dataPath(of: "lock.mdb")) { statusPage?[.hasCrashed] = 1 }
  }

  /// Counts a crash that was noted, when a process alone opens the store for use. A clean end resets the count, and so
  /// does a minute of service.
  func countCrash() {
    guard let flag = statusPage else { return }
    flag[.crashCount] = flag[.hasCrashed] == 0 ? 0 : min(flag[.crashCount], 1000) + 1
    flag[.hasCrashed] = 0
  }

  /// The number of crashes in a row after which the data is replaced.
  private static let maximumCrashCount = 3
  var hasCrashedRepeatedly: Bool { (statusPage?[.crashCount] ?? 0) >= UInt64(Self.maximumCrashCount) }

  func write(_ text: String, to name: String) throws(StoreError) {
    let descriptor = FileDescriptor.open(
      path(of: name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { throw .unusable(path, doing: "writing \(name)", errno) }
    defer { close(descriptor) }
    var text = text
    let written = text.withUTF8 { Glibc.write(descriptor, $0.baseAddress, $0.count) }
    guard written == text.utf8.count else { throw .unusable(path, doing: "writing \(name)", errno) }
  }

  // MARK: Data

  private static let fileNames =
    [lockFileName, MappedFile.temporaryPath(of: lockFileName)]
    + ["store", "counters", "events", "fleet"].map { "LMDBURLCache." + $0 }
    // Files that are being created.
    + ["counters", "events"].map { "LMDBURLCache." + $0 + ".new" }

  private static let dataFileNames =
    [DataFile.name, "lock.mdb"]
    + [RemovalLog.name, IndexLayout.fileName].flatMap { [$0, $0 + ".new"] }

  /// Returns the disk usage of the directory's files in bytes: their allocated blocks.
  func diskByteCount() -> Int {
    let paths = Self.fileNames.map { path(of: $0) } + Self.dataFileNames.map { dataPath(of: $0) }
    return paths.reduce(0) { $0 + Self.allocatedByteCount($1) }
  }

  func hasFile(_ name: String) -> Bool { Self.hasFile(name, in: path) }

  static func names(in directory: String) -> [String] {
    guard let stream = opendir(directory) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      names.append(withUnsafePointer(to: &entry.pointee.d_name.0) { String(cString: $0) })
    }
    return names
  }

  static func hasFile(_ name: String, in directory: String) -> Bool { access(directory + "/" + name, F_OK) == 0 }

  /// The length of the data file, or 0.
  var dataFileByteCount: Int { Self.byteCount(of: dataPath) }

  /// Sets the length of the data file, without using disk space. Returns false if that fails.
  func setDataFileByteCount(_ byteCount: Int) -> Bool {
    let descriptor = FileDescriptor.open(dataPath, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    return ftruncate(descriptor, off_t(byteCount)) == 0
  }

  /// Returns the length of a file, or 0.
  static func byteCount(of path: String) -> Int {
    var status = stat()
    return stat(path, &status) == 0 ? Int(status.st_size) : 0
  }

  /// The allocated bytes of the data file.
  var allocatedDataByteCount: Int { Self.allocatedByteCount(dataPath) }

  /// When the data was last written, in nanoseconds; it changes whenever a process makes progress.
  var dataChangeTime: Int {
    var status = stat()
    return stat(dataPath, &status) == 0 ? status.st_mtim.tv_sec * 1_000_000_000 + status.st_mtim.tv_nsec : 0
  }

  private static func allocatedByteCount(_ path: String) -> Int {
    var status = stat()
    return lstat(path, &status) == 0 ? Int(status.st_blocks) * 512 : 0
  }
}
