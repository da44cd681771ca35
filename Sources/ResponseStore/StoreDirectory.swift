import Glibc
import LMDB

/// The store's directory: who may use it, which files lie in it, and whether this process is alone with them.
///
/// | file | what for |
/// |---|---|
/// | `data.mdb`, `lock.mdb` | LMDB's |
/// | `data.mdb.damaged`, `data.mdb.other-version` | data that was set aside; deleted when its room is needed |
/// | `LMDBURLCache.store` | says that the directory is ours; renamed to `.condemned` when the data must not be used again |
/// | `LMDBURLCache.opening` | there while a process opens the data; found twice, it has crashed openers, and the data goes |
/// | `LMDBURLCache.removals` | ``RemovalLog`` |
/// | `LMDBURLCache.index` | ``RecordIndex`` |
/// | `open.lock` | held (`flock`) while a process opens, so that no two do at once |
/// | `users.lock` | held shared while a process has the data open; held alone, the data may be replaced. Its first page is the ``SharedFlag`` |
///
/// `@unchecked Sendable`: the descriptors and the flag are set while opening, on one thread, and go with the object, or when one
/// thread lets go of the directory.
final class StoreDirectory: @unchecked Sendable {
  static let markerText = "LMDBURLCache response store\n"

  /// Absolute, so that it stays right when the process changes its working directory.
  let path: String
  /// Device and inode: what tells two paths to one directory.
  let identity: Identity
  private var openLock: LockDescriptor?
  private var usersLock: LockDescriptor?
  /// Set by whoever gives the data up.
  private(set) var condemnedFlag: SharedFlag?

  struct Identity: Hashable, Sendable {
    var device: UInt
    var inode: UInt
  }

  /// Makes the directory (0700) with what is missing above it, if `makesDirectory`, and checks that it can be trusted.
  init(path givenPath: String, allowsUntrusted: Bool, makesDirectory: Bool = true) throws(StoreError) {
    path = try DirectoryPath.absolute(givenPath)
    if makesDirectory { try DirectoryPath.make(path) }
    var status = stat()
    guard lstat(path, &status) == 0 else {
      guard makesDirectory || (errno != ENOENT && errno != ENOTDIR) else {
        throw .missing(path, reason: "there is no such directory")
      }
      throw .unusable(path, doing: "looking at the directory", errno)
    }
    if status.st_mode & S_IFMT == S_IFLNK {
      guard allowsUntrusted else {
        throw StoreError(
          .untrustedDirectory, directory: path, reason: "the directory is a symbolic link",
          remedy: "Give the path that it leads to, or allow untrusted directories")
      }
      guard stat(path, &status) == 0 else { throw .unusable(path, doing: "following the link", errno) }
    }
    guard status.st_mode & S_IFMT == S_IFDIR else {
      throw StoreError(
        .unusableDirectory, directory: path, reason: "a file stands in the place of the directory",
        remedy: "Remove the file or choose another directory")
    }
    guard status.st_uid == geteuid() || allowsUntrusted else {
      throw StoreError(
        .untrustedDirectory, directory: path, reason: "the directory belongs to another user",
        remedy: "Choose a directory of your own, or allow untrusted directories")
    }
    identity = Identity(device: UInt(status.st_dev), inode: UInt(status.st_ino))
    guard faccessat(AT_FDCWD, path, R_OK | W_OK | X_OK, AT_EACCESS) == 0 else {
      throw .unusable(path, doing: "reading and writing the directory", errno)
    }
  }

  func path(of name: String) -> String { path + "/" + name }
  var dataPath: String { path(of: DataFile.name) }
  private var markerPath: String { path(of: "LMDBURLCache.store") }
  private var condemnedPath: String { path(of: "LMDBURLCache.condemned") }
  var openingPath: String { path(of: "LMDBURLCache.opening") }
  var removalLogPath: String { path(of: RemovalLog.name) }

  // MARK: Locks

  /// Waits for the right to open, for at most `timeout`; true if there is no other user of the directory.
  func lockForOpening(timeout: Duration) throws(StoreError) -> Bool {
    let openLock = try openFile("open.lock")
    self.openLock = openLock
    let deadline = MonotonicTime.now + timeout
    while flock(openLock.number, LOCK_EX | LOCK_NB) != 0 {
      guard errno == EWOULDBLOCK || errno == EINTR else {
        throw .unusable(path, doing: "locking the directory", errno)
      }
      guard MonotonicTime.now < deadline else {
        throw StoreError(
          .busy, directory: path, reason: "another process has been opening it for too long",
          remedy: "See whether a process that uses the directory is stopped, and let it go on or end it")
      }
      usleep(1000)
    }
    let usersLock = try openFile("users.lock")
    self.usersLock = usersLock
    condemnedFlag = SharedFlag(descriptor: usersLock.number)
    guard condemnedFlag != nil else { throw .unusable(path, doing: "making users.lock", errno) }
    while true {
      if flock(usersLock.number, LOCK_EX | LOCK_NB) == 0 { return true }
      if errno != EINTR { return false }
    }
  }

  /// Refuses a directory that processes of another PID namespace have open: LMDB knows readers by their process numbers, which mean
  /// something else there, so that pages could be overwritten which are being read.
  ///
  /// A process that is alone notes its own namespace. One that cannot know it, as `/proc` is missing, is let in.
  func checkProcessNamespace(isAlone: Bool) throws(StoreError) {
    var status = stat()
    let own = stat("/proc/self/ns/pid", &status) == 0 ? UInt64(status.st_ino) : 0
    guard let condemnedFlag else { return }
    if isAlone { condemnedFlag.processNamespace = own }
    let others = condemnedFlag.processNamespace
    guard own != 0, others != 0, own != others else { return }
    throw StoreError(
      .otherProcessNamespace, directory: path,
      reason: "it is in use by a process of another PID namespace, as of another container",
      remedy: "Let the processes share one PID namespace, or give each container a directory of its own")
  }

  /// Keeps the directory in use by this process, and lets others open it.
  func finishOpening() throws(StoreError) {
    // Nobody holds it alone now, as only an opener does.
    while let usersLock, flock(usersLock.number, LOCK_SH) != 0 {
      guard errno == EINTR else { throw .unusable(path, doing: "locking the directory", errno) }
    }
    openLock?.close()
    openLock = nil
  }

  /// Gives the directory up before this object goes. The flag stays mapped for whoever looks at it.
  func letGo() {
    usersLock?.close()
    usersLock = nil
  }

  private func openFile(_ name: String) throws(StoreError) -> LockDescriptor {
    let file = LockDescriptor(path(of: name), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard let file else { throw .unusable(path, doing: "opening \(name)", errno) }
    return file
  }

  // MARK: Markers

  /// Whether the directory carries our marker.
  var isOurs: Bool { access(markerPath, F_OK) == 0 || access(condemnedPath, F_OK) == 0 }

  /// Whether the data was given up and must be replaced.
  var isCondemned: Bool { access(condemnedPath, F_OK) == 0 || condemnedFlag?.isSet == true }

  /// Says that the directory is ours and its data good. Before there is data: without the marker it would be taken for
  /// another program's. Takes no room if the marker is there.
  func mark() throws(StoreError) {
    if access(markerPath, F_OK) != 0 {
      try write(Self.markerText, to: "LMDBURLCache.store")
      synchronize()
    }
    unlink(condemnedPath)
    condemnedFlag?.set(false)
  }

  /// Gives the data up, for all processes: those that have it open miss from now on, and the next one that is alone with
  /// it starts anew. Needs no room on the disk.
  func condemn() {
    condemnedFlag?.set(true)
    // Another directory may stand in its place by now, whose data is none of ours.
    var status = stat()
    guard stat(path, &status) == 0,
      identity == Identity(device: UInt(status.st_dev), inode: UInt(status.st_ino))
    else { return }
    rename(markerPath, condemnedPath)
    synchronize()
  }

  /// Whether other data may stand in the place of the data that was used here and given up.
  var mayHoldOtherData: Bool {
    // Whoever begins anew first takes the flag back, in the file that it is in; and makes the data last.
    if let condemnedFlag, condemnedFlag.isSet, condemnedFlag.isMapped(from: path(of: "users.lock")) { return false }
    return access(dataPath, F_OK) == 0
  }

  /// Makes names in the directory safe on disk, as far as the disk still works.
  func synchronize() {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard descriptor >= 0 else { return }
    fsync(descriptor)
    close(descriptor)
  }

  /// Notes that the data is about to be mapped. Returns how many openings before this one did not get to
  /// ``openingCameBack()``.
  func noteOpening() -> Int {
    var failures = 0
    if let text = read(name: "LMDBURLCache.opening") { failures = Int(text.prefix { $0.isNumber }) ?? 1 }
    do throws(StoreError) {
      try write("\(min(failures, 1000) + 1)\n", to: "LMDBURLCache.opening")
    } catch {
      // A full disk must not keep a store from being opened and read; it goes without the guard this once.
    }
    return failures
  }

  func openingCameBack() {
    unlink(openingPath)
  }

  private func write(_ text: String, to name: String) throws(StoreError) {
    let descriptor = FileDescriptor.open(
      path(of: name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { throw .unusable(path, doing: "writing \(name)", errno) }
    defer { close(descriptor) }
    var text = text
    let written = text.withUTF8 { Glibc.write(descriptor, $0.baseAddress, $0.count) }
    guard written == text.utf8.count else { throw .unusable(path, doing: "writing \(name)", errno) }
  }

  private func read(name: String) -> String? {
    let descriptor = FileDescriptor.open(path(of: name), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var buffer = [UInt8](repeating: 0, count: 64)
    let count = Glibc.read(descriptor, &buffer, buffer.count)
    return String(decoding: buffer.prefix(max(count, 0)), as: UTF8.self)
  }

  // MARK: Data

  private static let asideSuffixes = ["damaged", "other-version"]

  /// Moves the data out of the way, for a look at it; it is deleted as soon as the store needs the room.
  /// Only for a process that is alone.
  func setDataAside(as suffix: String) throws(StoreError) {
    deleteWhatWasSetAside()
    if rename(dataPath, dataPath + "." + suffix) != 0, errno != ENOENT {
      throw .unusable(path, doing: "setting the damaged data aside", errno)
    }
    unlink(path(of: "lock.mdb"))
    unlink(path(of: IndexLayout.fileName))
    // Of format 4 and before.
    unlink(path(of: "LMDBURLCache.uses"))
    condemnedFlag?.clearSuspect()
    endCheck()
  }

  /// Deletes what ``setDataAside(as:)`` kept.
  func deleteWhatWasSetAside() {
    for suffix in Self.asideSuffixes { unlink(dataPath + "." + suffix) }
  }

  private static let fileNames =
    [DataFile.name, "lock.mdb", "users.lock", "open.lock"]
    + ["store", "condemned", "opening", "removals", "index"].map { "LMDBURLCache." + $0 }
    + asideSuffixes.map { DataFile.name + "." + $0 }

  /// The bytes that the directory's files take on disk: their allocated blocks.
  func diskByteCount() -> Int {
    Self.fileNames.reduce(0) { $0 + Self.allocatedByteCount(path(of: $1)) }
  }

  /// The length of the data file, or 0.
  var dataFileByteCount: Int {
    var status = stat()
    return stat(dataPath, &status) == 0 ? Int(status.st_size) : 0
  }

  /// What the data file takes on disk.
  var allocatedDataByteCount: Int { Self.allocatedByteCount(dataPath) }

  /// When the data was last written, in nanoseconds; it changes whenever some process makes progress.
  var dataChangeTime: Int {
    var status = stat()
    return stat(dataPath, &status) == 0 ? status.st_mtim.tv_sec * 1_000_000_000 + status.st_mtim.tv_nsec : 0
  }

  private static func allocatedByteCount(_ path: String) -> Int {
    var status = stat()
    return lstat(path, &status) == 0 ? Int(status.st_blocks) * 512 : 0
  }
}
