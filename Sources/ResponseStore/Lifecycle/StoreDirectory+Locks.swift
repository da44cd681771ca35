import Glibc
import LMDB
import SystemFiles

/// The locks of a directory, and what they tell about the other processes that use it.
extension StoreDirectory {
  /// Waits up to `timeout` for the open lock. Returns true if no other process uses the directory.
  ///
  /// Changes nothing in a directory that a process with another version of the storage format uses.
  ///
  /// - Parameters:
  ///   - createsFiles: Whether a missing lock file is created. Without it, it is not known whether another process uses
  ///   the directory.
  ///   - examine: Called with the open lock, when no process creates data, and before a file is created. Throws if the
  ///   directory must not be used.
  func lockForOpening(
    timeout: Duration, createsFiles: Bool = true, examine: () throws(StoreError) -> Void = {}
  ) throws(StoreError) -> Bool {
    try takeOpenLock(timeout: timeout)
    try examine()
    var usersLock = openUsersLock()
    if usersLock == nil, errno != ENOENT { throw .unusable(path, doing: "opening \(Self.lockFileName)", errno) }
    if usersLock == nil, !createsFiles { throw missingLock("\(Self.lockFileName) is missing") }
    isAlone = usersLock.map { Self.lockExclusively($0) } ?? true
    if isAlone {
      let format = usersLock.flatMap { SharedStatusPage.format(descriptor: $0.number) }
      try waitForUsersWithoutLock(timeout: timeout, ofEarlierFormat: format != UInt64(StorageFormat.version))
    } else if let usersLock {
      try checkFormat(inUse: usersLock)
    }
    if usersLock == nil { usersLock = try createUsersLock() }
    if isAlone, try giveMappedFilesOwnBlocks(mayDelete: createsFiles) {
      // No other process can have locked the new file, because this one has the open lock.
      usersLock = try createUsersLock()
    }
    guard let usersLock, let identity = DirectoryIdentity(descriptor: usersLock.number) else {
      throw .unusable(path, doing: "examining \(Self.lockFileName)", errno)
    }
    (self.usersLock, usersLockIdentity) = (usersLock, identity)
    statusPage = SharedStatusPage(descriptor: usersLock.number, extendsFile: createsFiles && isAlone)
    guard statusPage != nil else {
      throw createsFiles && isAlone
        ? .unusable(path, doing: "making \(Self.lockFileName)", errno)
        : missingLock("\(Self.lockFileName) is incomplete")
    }
    return isAlone
  }

  /// Marks the directory as in use by this process, and releases the open lock.
  func finishOpening() throws(StoreError) {
    // No other process holds this lock exclusively, because only an opening process does.
    while let usersLock, flock(usersLock.number, LOCK_SH) != 0 {
      guard errno == EINTR else { throw .unusable(path, doing: "locking the directory", errno) }
    }
    // On a file system without these locks, only the lock file shows who uses the directory.
    _ = directoryLock?.shareBytes(Self.bytesInUse)
    directoryLock?.unlock()
  }

  /// Ends the use of the directory by this process, which has closed its store or found that it has failed.
  ///
  /// Any thread can call it.
  func endUse() { directoryLock?.unlockBytes(Self.bytesInUse) }

  /// A byte of the directory. Each process that uses it shares a lock on it, also if its lock file was deleted.
  private static let bytesInUse = 0..<1

  /// Whether the lock file at the path is the one that this process has locked. Costs a `stat`.
  ///
  /// Also true if the file cannot be examined for any other reason than that it does not exist.
  var isLockFileInPlace: Bool {
    if let identity = DirectoryIdentity(path: path(of: Self.lockFileName)) { return identity == usersLockIdentity }
    return errno != ENOENT && errno != ENOTDIR
  }

  // MARK: LMDB's lock file

  /// The lock file of the generation, which all processes that have it open must share.
  ///
  /// Nil if this process is alone, or none is recorded.
  var recordedLockFile: DirectoryIdentity? {
    guard !isAlone, let page = statusPage, page[.lockFileGeneration] == generation else { return nil }
    return DirectoryIdentity(device: page[.lockFileDevice], inode: page[.lockFileInode])
  }

  /// Records the format and the lock file of the data that this process has opened before any other.
  func recordData(lockFile: DirectoryIdentity?) {
    let page = lockedStatusPage
    // A read-only mapping is private.
    (page[.lockFileDevice], page[.lockFileInode]) = (lockFile?.device ?? 0, lockFile?.inode ?? 0)
    page[.lockFileGeneration] = generation
    page[.format] = UInt64(StorageFormat.version)
  }

  // MARK: Taking locks

  private func takeOpenLock(timeout: Duration) throws(StoreError) {
    guard let lock = LockDescriptor(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) else {
      throw .unusable(path, doing: "opening the directory", errno)
    }
    directoryLock = lock
    let deadline = MonotonicTime.now + timeout
    while flock(lock.number, LOCK_EX | LOCK_NB) != 0 {
      guard errno == EWOULDBLOCK || errno == EINTR else {
        throw .unusable(path, doing: "locking the directory", errno)
      }
      guard MonotonicTime.now < deadline else {
        throw .busy(path, reason: "another process held the open lock for too long")
      }
      usleep(1000)
    }
  }

  /// Opens the lock file; nil if it is missing or cannot be opened, with the reason in `errno`.
  private func openUsersLock(_ flags: CInt = 0) -> LockDescriptor? {
    LockDescriptor(path(of: Self.lockFileName), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, mode: 0o600)
  }

  /// The format of the processes that use the directory, or used it last; 0 before version 7. Nil without a lock file.
  ///
  /// Reads the file without a lock and without a change.
  var recordedFormat: UInt64? { openUsersLock().flatMap { SharedStatusPage.format(descriptor: $0.number) } }

  private func createUsersLock() throws(StoreError) -> LockDescriptor {
    guard let lock = openUsersLock(O_CREAT) else {
      throw .unusable(path, doing: "making \(Self.lockFileName)", errno)
    }
    _ = Self.lockExclusively(lock)
    return lock
  }

  private static func lockExclusively(_ lock: LockDescriptor) -> Bool {
    while true {
      if flock(lock.number, LOCK_EX | LOCK_NB) == 0 { return true }
      if errno != EINTR { return false }
    }
  }

  // MARK: Other processes

  /// Throws if the processes that use the directory have another version of the storage format.
  private func checkFormat(inUse usersLock: LockDescriptor) throws(StoreError) {
    guard let format = SharedStatusPage.format(descriptor: usersLock.number) else {
      throw missingLock("\(Self.lockFileName) is incomplete")
    }
    if format != StorageFormat.version {
      throw .otherVersionInUse(path, format == 0 ? "an earlier format" : "format \(format)")
    }
  }

  /// Waits for processes that use the directory although they hold no lock on the lock file: it was deleted, and this
  /// process cannot share one with them.
  ///
  /// They find that out within seconds and end their generation. Waits up to twice the timeout.
  ///
  /// - Parameter ofEarlierFormat: Whether they may have another format.
  private func waitForUsersWithoutLock(timeout: Duration, ofEarlierFormat: Bool) throws(StoreError) {
    let deadline = MonotonicTime.now + timeout * 2
    while directoryLock?.areLockedByOthers(Self.bytesInUse) == true || ofEarlierFormat && isLMDBInUse {
      guard MonotonicTime.now < deadline else {
        throw .busy(
          path, reason: "processes use it whose \(Self.lockFileName) was deleted",
          remedy:
            "End or restart the programs that use the directory, and exclude it from programs that delete old files")
      }
      usleep(10_000)
    }
  }

  /// Whether a process with LMDB has the data open. Before format 6, the data was in the directory itself.
  private var isLMDBInUse: Bool {
    ([path] + Self.generations(in: path).map { folder($0) }).contains {
      Self.hasFile(DataFile.name, in: $0) && LockFile.isInUse(inDirectory: $0)
    }
  }

  private func missingLock(_ reason: String) -> StoreError {
    StoreError(
      .unusableDirectory, directory: path, reason: reason,
      remedy: "Open a cache on the directory: it makes the file. If a program has the cache open, restart it")
  }
}

extension StoreError {
  /// Returns the error for a directory that processes of another version use.
  static func otherVersionInUse(_ path: String, _ found: String) -> StoreError {
    StoreError(
      .otherVersionInUse, directory: path,
      reason: "it has \(found), this library writes format \(StorageFormat.version), and it is in use",
      remedy: "End the processes of the other version, or choose another directory")
  }
}
