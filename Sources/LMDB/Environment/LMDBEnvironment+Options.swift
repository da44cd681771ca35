internal import CLMDB
internal import Glibc

extension LMDBEnvironment {
  /// The options for opening an environment.
  public struct Options: Sendable {
    /// The size of the map in bytes, which limits the size of `data.mdb`. There is no default.
    ///
    /// It is rounded down to whole pages. A larger file keeps its size. Use the same size in all processes.
    public var mapByteCount: Int

    /// The number of simultaneous read transactions of all processes that the lock file supports; 1024 by default.
    ///
    /// Each takes 64 bytes on disk. Only a process that opens the directory alone can change the number. With nil the
    /// lock file stays unchanged, and a new one has 1024.
    public var maximumReaders: Int? = 1024

    /// The maximum number of open tables; 16 by default. Each makes every transaction a little slower.
    public var maximumTables = 16

    /// Whether the directory is on a read-only file system, and no process uses it; false by default.
    ///
    /// Then no locks are taken, and write transactions fail.
    public var isReadOnly = false

    /// The lock file that other processes have open; nil if there is none, or any will do. The default is nil.
    ///
    /// With another one, their transactions and those of this process would not exclude each other. Opening then throws
    /// ``LMDBError/Code/lockFileReplaced``.
    package var lockFile: DirectoryIdentity?

    /// The permissions of new files; `0o600` by default, for the owner only.
    public var fileMode: UInt32 = 0o600

    /// Called on the current thread when liblmdb finds its data inconsistent, just before it ends the process.
    ///
    /// None by default.
    ///
    /// This is the last chance to record that the file must not be opened again. The handler must not use the
    /// environment.
    public var corruptionHandler: (@Sendable () -> Void)?

    /// Creates options with a map size and defaults for the rest.
    public init(mapByteCount: Int) {
      self.mapByteCount = mapByteCount
    }

    /// - `MDB_NOTLS`: otherwise a slot would belong to its thread until the thread ends, and could not be pooled.
    /// - `MDB_NORDAHEAD`: with values scattered over the file, the system's read-ahead would mostly read other pages.
    /// - `MDB_NOMETASYNC`: a commit leaves the sync of its meta page to the next one. A power failure can then undo the
    ///   last commit, but never corrupts the file.
    var flags: UInt32 {
      UInt32(MDB_NOTLS | MDB_NORDAHEAD | MDB_NOMETASYNC) | (isReadOnly ? UInt32(MDB_RDONLY | MDB_NOLOCK) : 0)
    }

    /// Traps if a value is out of range.
    func check() {
      if mapByteCount <= 0 { trap(.mapByteCountNotPositive) }
      if let maximumReaders, !(1...65_535).contains(maximumReaders) { trap(.maximumReadersOutOfRange) }
      if !(0...32_765).contains(maximumTables) { trap(.maximumTablesOutOfRange) }
    }
  }
}
