internal import CLMDB
internal import Glibc
internal import Synchronization
internal import SystemFiles

/// An LMDB environment: a directory with `data.mdb` and `lock.mdb` that threads and processes share.
///
/// A process has one environment object per directory: opening the directory again, by any path, returns the same
/// object. It closes when its last reference is released. All methods can be called from any thread.
///
/// The directory must be on a local file system. All processes that use it must have the same architecture and one
/// process ID namespace. No other code in the process may open or copy `lock.mdb`, because closing that file
/// anywhere in the process releases LMDB's lock on it.
///
/// A forked child must not use the environment: calls that throw then throw ``LMDBError/Code/forked``. The child may
/// open the directory again.
public final class LMDBEnvironment: @unchecked Sendable {
  // Sendable: the constants' targets are guarded by LMDB's own locks, by the slots' atomic owners, or by the lock that
  // their comments name. `tablesLock` guards the only variable.

  /// The process that opened the environment.
  public let openedProcessID: Int32

  /// The page size in bytes, which is the operating system's. `mdb_env_stat`.
  public let pageByteCount: Int

  /// The maximum key size in bytes. `mdb_env_get_maxkeysize`.
  public let maximumKeyByteCount: Int

  /// A number that identifies this environment in the process; tables and transactions carry it.
  @usableFromInline let serial: UInt

  let pointer: OpaquePointer
  /// A second descriptor of the data file, for ``synchronize()``. Its lock is held during a write transaction.
  let dataFile: LockDescriptor
  let syncFailures = SyncFailures()
  let identity: DirectoryIdentity
  let dataFileIdentity: DirectoryIdentity
  /// The lock file; nil if it was deleted while the environment was opened.
  package let lockFileIdentity: DirectoryIdentity?
  /// Kept open for `flock`, and so that no other directory gets the inode number.
  let directoryLock: LockDescriptor

  let slots: ReaderSlots
  let slotWait = SlotWait()
  /// A state of ``TransactionGate``.
  let gate = Atomic<UInt>(TransactionGate.open)
  /// Held while the gate is not open.
  let gateLock = ConditionLock()
  /// The number of running write transactions and other calls that have no slot.
  let callCount = Atomic<Int>(0)
  /// Set by the thread that has the registry's turn for the directory.
  ///
  /// `deinit` also reads it, when no other thread is left.
  let isClosed = Atomic<Bool>(false)

  /// Held by the thread of the write transaction; `writingThread` is that thread.
  let writeLock = TicketLock()
  let writingThread = Atomic<UInt>(0)
  /// Guarded by `writeLock`.
  let writeState: UnsafeMutablePointer<WriteState>

  /// Guards `tableHandles`.
  let tablesLock = ConditionLock()
  var tableHandles: [String: UInt32] = [:]
  /// The highest table handle in use plus 1. Handles 0 and 1 are LMDB's own.
  let tableHandleEnd = Atomic<UInt32>(2)

  let forkGeneration: UnsafeMutablePointer<Atomic<UInt>>
  let openedForkGeneration: UInt

  /// Opens the environment of a directory, or returns the one that this process has open.
  ///
  /// Processes that open or close a directory at the same time take turns, with a `flock` on the directory. If this
  /// process has the directory open and LMDB could not write a meta page (``LMDBError/Code/panic``), the environment is
  /// closed and opened again.
  /// - Parameters:
  ///   - directory: The path of an existing directory.
  ///   - options: The options; ignored if this process has the directory open.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/noSuchFile`` and other errors of the operating system;
  ///   ``LMDBError/Code/noSpace`` if the disk has no space for all of `lock.mdb`; ``LMDBError/Code/invalid`` if
  ///   `data.mdb` is not an LMDB file; ``LMDBError/Code/temporarilyUnavailable`` if transactions of an environment
  ///   that must be closed still run; ``LMDBError/Code/versionMismatch``; ``LMDBError/Code/unsupportedLibrary``. LMDB
  ///   checks little of the file and may crash on a corrupt one: see ``DataFile/inspect(path:mapByteCount:)``.
  public static func open(directory: String, options: Options) throws(LMDBError) -> LMDBEnvironment {
    try EnvironmentRegistry.open(directory: directory, options: options)
  }

  /// Takes ownership of an open LMDB environment.
  init(
    opened pointer: OpaquePointer, dataFile: LockDescriptor, slots: ReaderSlots, identity: DirectoryIdentity,
    dataFileIdentity: DirectoryIdentity, lockFileIdentity: DirectoryIdentity?, directoryLock: LockDescriptor,
    serial: UInt
  ) {
    self.pointer = pointer
    self.dataFile = dataFile
    self.slots = slots
    self.identity = identity
    self.dataFileIdentity = dataFileIdentity
    self.lockFileIdentity = lockFileIdentity
    self.directoryLock = directoryLock
    self.serial = serial
    openedProcessID = getpid()
    forkGeneration = ForkDetection.generation
    openedForkGeneration = forkGeneration.pointee.load(ordering: .relaxed)
    var statistics = MDB_stat()
    mdb_env_stat(pointer, &statistics)
    pageByteCount = Int(statistics.ms_psize)
    maximumKeyByteCount = Int(mdb_env_get_maxkeysize(pointer))
    writeState = .allocate(capacity: 1)
    writeState.initialize(to: WriteState())
  }

  deinit {
    // In a forked child the environment belongs to the parent. Closing it would free the parent's reader slots, and
    // ending its transactions would write to the shared lock file. The child leaks it.
    if isInOpeningProcess {
      closeNow()
      slots.destroy()
    }
    writeState.deallocate()
  }

  /// Whether this is the process that opened the environment. Costs a system call.
  var isInOpeningProcess: Bool {
    !isForked && getpid() == openedProcessID
  }

  /// Whether the process was forked after the environment was opened. Costs a load.
  var isForked: Bool {
    forkGeneration.pointee.load(ordering: .relaxed) != openedForkGeneration
  }
}
