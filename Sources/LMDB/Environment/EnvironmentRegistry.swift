internal import CLMDB
internal import Glibc
internal import Synchronization
internal import SystemFiles

/// The identity of a directory or file, independent of its path.
package struct DirectoryIdentity: Hashable, Sendable {
  package let device: UInt64
  package let inode: UInt64

  package init(device: UInt64, inode: UInt64) {
    self.device = device
    self.inode = inode
  }

  init(_ status: stat) {
    device = UInt64(status.st_dev)
    inode = UInt64(status.st_ino)
  }

  /// Returns nil if the descriptor is not open.
  package init?(descriptor: CInt) {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    self.init(status)
  }

  /// Returns nil if there is no such file or directory.
  package init?(path: String) {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    self.init(status)
  }
}

/// The environments that this process has open: at most one per directory.
///
/// Two environments in one process would share POSIX locks, and closing one would remove the other's readers from the
/// lock file. Other processes would then overwrite pages that are being read.
enum EnvironmentRegistry {
  private struct Entry {
    weak var environment: LMDBEnvironment?
    let serial: UInt
    let forkGeneration: UInt
  }

  private static let lock = ConditionLock()
  /// Guarded by `lock`, like `nextSerial`. An entry stays until its environment is closed.
  nonisolated(unsafe) private static var entries: [DirectoryIdentity: Entry] = [:]
  nonisolated(unsafe) private static var nextSerial: UInt = 1
  /// Directories that a thread is opening or closing, with the thread's fork generation. Guarded by `lock`.
  ///
  /// Other threads wait only for the same directory. That can take long, because another process may be suspended while
  /// it opens or closes the directory.
  nonisolated(unsafe) private static var turns: [DirectoryIdentity: UInt] = [:]

  static func open(directory: String, options: LMDBEnvironment.Options) throws(LMDBError) -> LMDBEnvironment {
    options.check()
    guard let directoryLock = LockDescriptor(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) else {
      throw .system("open")
    }
    var status = stat()
    guard fstat(directoryLock.number, &status) == 0 else { throw .system("fstat") }
    let identity = DirectoryIdentity(status)
    let generation = ForkDetection.generation.pointee.load(ordering: .relaxed)
    guard let environment = takeTurn(identity, generation) else {
      return try openInTurn(identity, directory, directoryLock, options, generation)
    }
    // Check this without the lock: if this is the last reference, releasing it closes the environment, which takes the
    // lock.
    if environment.hasPanicked {
      guard environment.close() else { throw LMDBError(code: .temporarilyUnavailable, function: "mdb_env_close") }
      return try open(directory: directory, options: options)
    }
    return environment
  }

  /// Whether this process has, or may have, an environment of a directory open.
  static func mayBeOpen(_ identity: DirectoryIdentity) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    let generation = ForkDetection.generation.pointee.load(ordering: .relaxed)
    return entries[identity]?.forkGeneration == generation || turns[identity] == generation
  }

  /// Returns the open environment of a directory; nil if the caller has the turn to open it.
  private static func takeTurn(_ identity: DirectoryIdentity, _ generation: UInt) -> LMDBEnvironment? {
    lock.lock()
    defer { lock.unlock() }
    while true {
      // An entry or a turn from before a fork belongs to the parent. Ignore it.
      if turns[identity] != generation {
        guard let entry = entries[identity], entry.forkGeneration == generation else { break }
        if let environment = entry.environment { return environment }
        // Its last reference was released, and another thread is about to close it.
      }
      lock.wait()
    }
    turns[identity] = generation
    return nil
  }

  private static func endTurn(_ identity: DirectoryIdentity, _ entry: Entry?) {
    lock.lock()
    turns[identity] = nil
    entries[identity] = entry
    lock.wakeAll()
    lock.unlock()
  }

  private static func openInTurn(
    _ identity: DirectoryIdentity, _ directory: String, _ directoryLock: LockDescriptor,
    _ options: LMDBEnvironment.Options, _ generation: UInt
  ) throws(LMDBError) -> LMDBEnvironment {
    let serial = takeSerial()
    do throws(LMDBError) {
      let pointer = try WriteSignals.suppressing { () throws(LMDBError) in
        try openNew(directory: directory, directoryLock, options: options)
      }
      guard let dataFile = LockDescriptor("\(directory)/\(DataFile.name)", O_RDWR | O_CLOEXEC | O_NOFOLLOW) else {
        throw close(pointer, after: .system("open"))
      }
      var information = MDB_envinfo()
      mdb_env_info(pointer, &information)
      guard let slots = ReaderSlots(count: Int(information.me_maxreaders)) else {
        throw close(pointer, after: .system("mmap"))
      }
      let environment = LMDBEnvironment(
        opened: pointer, dataFile: dataFile, slots: slots, identity: identity,
        dataFileIdentity: dataFileIdentity(of: pointer), lockFileIdentity: LockFile.identity(inDirectory: directory),
        directoryLock: directoryLock, serial: serial)
      endTurn(identity, Entry(environment: environment, serial: serial, forkGeneration: generation))
      return environment
    } catch {
      endTurn(identity, nil)
      throw error
    }
  }

  /// Closes an environment that was not completely opened. Returns the error.
  private static func close(_ pointer: OpaquePointer, after error: LMDBError) -> LMDBError {
    releaseCorruptionHandler(of: pointer)
    mdb_env_close(pointer)
    return error
  }

  private static func takeSerial() -> UInt {
    lock.lock()
    defer { lock.unlock() }
    nextSerial += 1
    return nextSerial - 1
  }

  /// Runs `body`, which closes an environment, while no thread can open the directory.
  ///
  /// Does nothing if the environment is already closed.
  static func close(identity: DirectoryIdentity, serial: UInt, _ body: () -> Void) {
    lock.lock()
    let generation = ForkDetection.generation.pointee.load(ordering: .relaxed)
    while entries[identity]?.serial == serial, turns[identity] == generation { lock.wait() }
    guard entries[identity]?.serial == serial else { return lock.unlock() }
    turns[identity] = generation
    lock.unlock()
    body()
    endTurn(identity, nil)
  }

  private static func openNew(
    directory: String, _ directoryLock: LockDescriptor, options: LMDBEnvironment.Options
  ) throws(LMDBError) -> OpaquePointer {
    if let failure = LoadedLibrary.failure { throw failure }
    var created: OpaquePointer?
    let rc = mdb_env_create(&created)
    guard rc == 0, let pointer = created else { throw LMDBError(rc, "mdb_env_create") }
    let failure =
      configure(pointer, options)
      ?? DirectoryLock.whileHolding(directoryLock) { isHeld in
        guard isHeld else { return LMDBError(code: .temporarilyUnavailable, function: "flock") }
        FileDescriptor.reserveStandardDescriptors()
        if let failure = LockFile.check(inDirectory: directory, is: options.lockFile) { return failure }
        if !options.isReadOnly,
          let failure = LockFile.allocate(
            directoryDescriptor: directoryLock.number, slotCount: options.maximumReaders, mode: options.fileMode)
        {
          return failure
        }
        let rc = mdb_env_open(pointer, directory, options.flags, options.fileMode)
        if rc != 0 { return LMDBError(rc, "mdb_env_open") }
        // The file may have been deleted in between. Then LMDB has created another one, and has not written yet.
        return LockFile.check(inDirectory: directory, is: options.lockFile)
      }
    // A failed open releases everything except the handle.
    if let failure { throw close(pointer, after: failure) }
    return pointer
  }

  private static func configure(_ pointer: OpaquePointer, _ options: LMDBEnvironment.Options) -> LMDBError? {
    let page = Int(getpagesize())
    var rc = mdb_env_set_mapsize(pointer, max(options.mapByteCount / page, 1) * page)
    if rc != 0 { return LMDBError(rc, "mdb_env_set_mapsize") }
    // The length of the lock file determines the number of slots. With 1, LMDB never extends the file itself.
    rc = mdb_env_set_maxreaders(pointer, options.isReadOnly ? 64 : 1)
    if rc != 0 { return LMDBError(rc, "mdb_env_set_maxreaders") }
    rc = mdb_env_set_maxdbs(pointer, UInt32(options.maximumTables))
    if rc != 0 { return LMDBError(rc, "mdb_env_set_maxdbs") }
    if let handler = options.corruptionHandler {
      mdb_env_set_userctx(pointer, Unmanaged.passRetained(CorruptionHandler(body: handler)).toOpaque())
    }
    rc = mdb_env_set_assert(pointer, logAssertion)
    return rc == 0 ? nil : LMDBError(rc, "mdb_env_set_assert")
  }

  private final class CorruptionHandler {
    let body: @Sendable () -> Void
    init(body: @escaping @Sendable () -> Void) { self.body = body }
  }

  static func releaseCorruptionHandler(of pointer: OpaquePointer) {
    guard let context = mdb_env_get_userctx(pointer) else { return }
    Unmanaged<CorruptionHandler>.fromOpaque(context).release()
  }

  /// Called by LMDB when it finds its data inconsistent, before it ends the process.
  private static let logAssertion: @convention(c) (OpaquePointer?, UnsafePointer<CChar>?) -> Void = {
    pointer, message in
    var path: UnsafePointer<CChar>?
    mdb_env_get_path(pointer, &path)
    let directory = path.map { String(cString: $0) } ?? "?"
    let text = message.map { String(cString: $0) } ?? "?"
    StandardError.writeLine("LMDB: the data file in \(directory) is corrupt; liblmdb ends the process: \(text)")
    if let pointer, let context = mdb_env_get_userctx(pointer) {
      Unmanaged<CorruptionHandler>.fromOpaque(context).takeUnretainedValue().body()
    }
  }

  private static func dataFileIdentity(of pointer: OpaquePointer) -> DirectoryIdentity {
    var descriptor: CInt = -1
    mdb_env_get_fd(pointer, &descriptor)
    var status = stat()
    fstat(descriptor, &status)
    return DirectoryIdentity(status)
  }
}

/// A lock between processes that open or close one directory.
///
/// liblmdb's header warns that opening and closing at the same time can fail.
enum DirectoryLock {
  /// The maximum wait for a process that is opening or closing, because it may be suspended.
  private static let timeoutMilliseconds = 5000

  /// Runs `body` while no other process does so for the same directory.
  ///
  /// Without `flock` on the file system, runs `body` unlocked: LMDB's own locks keep the data safe.
  /// - Parameter body: Receives false if another process held the lock for about five seconds.
  static func whileHolding<R>(_ lock: LockDescriptor, _ body: (Bool) -> R) -> R {
    var waited = 0
    while flock(lock.number, LOCK_EX | LOCK_NB) != 0, errno == EWOULDBLOCK || errno == EINTR {
      guard waited < timeoutMilliseconds else { return body(false) }
      usleep(1000)
      waited += 1
    }
    defer { flock(lock.number, LOCK_UN) }
    return body(true)
  }
}
