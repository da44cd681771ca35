internal import CLMDB
internal import Glibc
internal import Synchronization

/// An LMDB environment: one directory with `data.mdb` and `lock.mdb`, shared by the threads of this process and by
/// other processes.
///
/// There is one environment object for each directory in a process; opening the directory again, by whatever path,
/// hands out the same object. It closes when the last reference to it is gone. All its methods may be called from any
/// thread.
///
/// The directory must lie on a local file system, and all processes that use it must have the same architecture and
/// share one process-id namespace. Nothing else in the process may open or copy `lock.mdb`: closing that file anywhere
/// in the process would drop LMDB's lock on it.
///
/// A process that forks must not use the environment in the child; calls that throw throw
/// ``LMDBError/Code/forked`` there, and the child may open the directory anew.
public final class Environment: @unchecked Sendable {
  // Sendable: every stored property is constant; what the pointers lead to is guarded by LMDB's own locks, by the
  // slots' atomic owners, or by the lock that is named beside it.

  /// The process that opened the environment.
  public let openedProcessID: Int32

  /// The size of a page in bytes, which is the operating system's. `mdb_env_stat`.
  public let pageByteCount: Int

  /// The longest key that can be stored, in bytes. `mdb_env_get_maxkeysize`.
  public let maximumKeyByteCount: Int

  /// The environment's number among all that this process has opened: tables and transactions are matched by it.
  @usableFromInline let serial: UInt

  let pointer: OpaquePointer
  /// The data file, opened once more for ``synchronize()``.
  let syncDescriptor: CInt
  let syncFailures = SyncFailures()
  let identity: DirectoryIdentity
  let dataFileIdentity: DirectoryIdentity
  /// Kept open, so that the directory's inode number is not given to another directory, and for `flock`.
  let directoryLock: LockDescriptor

  let slots: ReaderSlots
  let slotQueue = SlotQueue()
  /// One of ``Gate``.
  let gate = Atomic<UInt>(Gate.open)
  /// Held while the gate is not open.
  let gateLock = Lock()
  /// How many write transactions and other calls are under way that the slots do not show.
  let callCount = Atomic<Int>(0)
  /// Set by whoever has the registry's turn for the directory; also read in `deinit`, when nobody else is left.
  let isClosed = Atomic<Bool>(false)

  /// Held by the thread of the write transaction, which is noted here.
  let writeLock = FairLock()
  let writingThread = Atomic<UInt>(0)
  /// Guarded by `writeLock`.
  let writeState: UnsafeMutablePointer<WriteState>

  /// Guards `tableHandles`.
  let tablesLock = Lock()
  let tableHandles: UnsafeMutablePointer<[String: UInt32]>
  /// One more than the greatest table handle in use; 0 and 1 are LMDB's own.
  let tableHandleEnd = Atomic<UInt32>(2)

  let forkGeneration: UnsafeMutablePointer<Atomic<UInt>>
  let openedForkGeneration: UInt

  /// Opens the environment of a directory, or hands out the one that this process has open.
  ///
  /// Two processes that open or close a directory at the same moment take turns, by a `flock` on the directory.
  /// - Parameters:
  ///   - directory: the path of a directory that exists.
  ///   - options: what to open it with. They are ignored when this process has the directory open already.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/noSuchFile`` and other reasons of the operating system,
  ///   ``LMDBError/Code/noSpace`` when the disk has no room for all of `lock.mdb`,
  ///   ``LMDBError/Code/invalid`` when `data.mdb` is not an LMDB file, ``LMDBError/Code/versionMismatch``,
  ///   ``LMDBError/Code/dataFileReplaced`` when the directory is open in this process and its `data.mdb` was replaced
  ///   since. LMDB looks at little of the file and may crash on a damaged one: see ``DataFile/inspect(path:mapByteCount:)``.
  public static func open(directory: String, options: Options) throws(LMDBError) -> Environment {
    try EnvironmentRegistry.open(directory: directory, options: options)
  }

  /// Takes over an environment that is open.
  init(
    opened pointer: OpaquePointer, syncDescriptor: CInt, identity: DirectoryIdentity,
    dataFileIdentity: DirectoryIdentity, directoryLock: LockDescriptor, serial: UInt
  ) {
    self.pointer = pointer
    self.syncDescriptor = syncDescriptor
    self.identity = identity
    self.dataFileIdentity = dataFileIdentity
    self.directoryLock = directoryLock
    self.serial = serial
    openedProcessID = getpid()
    forkGeneration = ForkDetection.generation
    openedForkGeneration = forkGeneration.pointee.load(ordering: .relaxed)
    var statistics = MDB_stat()
    mdb_env_stat(pointer, &statistics)
    pageByteCount = Int(statistics.ms_psize)
    maximumKeyByteCount = Int(mdb_env_get_maxkeysize(pointer))
    var information = MDB_envinfo()
    mdb_env_info(pointer, &information)
    slots = ReaderSlots(count: Int(information.me_maxreaders))
    writeState = .allocate(capacity: 1)
    writeState.initialize(to: WriteState())
    tableHandles = .allocate(capacity: 1)
    tableHandles.initialize(to: [:])
  }

  deinit {
    // In a forked child the environment is the parent's: closing it would free the parent's reader slots, and ending
    // its transactions would write to the shared lock file. The child leaks it.
    if isInOpeningProcess {
      closeNow()
      slots.destroy()
    }
    writeState.deallocate()
    tableHandles.deinitialize(count: 1)
    tableHandles.deallocate()
    slotQueue.destroy()
    gateLock.destroy()
    writeLock.destroy()
    tablesLock.destroy()
  }

  /// Whether this is the process that opened the environment. Costs a system call.
  var isInOpeningProcess: Bool {
    !isForked && getpid() == openedProcessID
  }

  /// Whether the process has been forked since the environment was opened. Costs a load.
  var isForked: Bool {
    forkGeneration.pointee.load(ordering: .relaxed) != openedForkGeneration
  }
}
