internal import CLMDB
internal import Glibc

extension Environment {
  /// What an environment is opened with.
  public struct Options: Sendable {
    /// The size of the map in bytes, and so the most that `data.mdb` can grow to. It is rounded down to whole pages;
    /// a file that is larger already keeps its size. Give all processes the same. There is no default.
    public var mapByteCount: Int

    /// The number of simultaneous read transactions that the lock file has room for, of all processes together. Each takes
    /// 64 bytes on the disk. Only a process that opens the directory alone can change it. With nil the lock file stays as it
    /// is, and a new one has 1024. The default is 1024.
    public var maximumReaders: Int? = 1024

    /// The number of tables that can be opened. The default is 16; each makes every transaction a little slower.
    public var maximumTables = 16

    /// Whether the operating system is told not to read ahead of page faults (`MDB_NORDAHEAD`). The default is true:
    /// with values scattered over the file, reading ahead reads mostly what nobody asked for.
    public var noReadAhead = true

    /// Whether a commit leaves the flush of its last 120 bytes to the next commit (`MDB_NOMETASYNC`). The default is
    /// true: a power cut may then undo the last commit, and never damages the file.
    public var noMetaSync = true

    /// The permissions of the files that are created. The default, `0o600`, is for the owner alone.
    public var fileMode: UInt32 = 0o600

    /// Called on whatever thread it is when liblmdb finds its own data inconsistent, right before it ends the process: the
    /// last chance to note that the file must not be opened again. It must not use the environment. None by default.
    public var damageHandler: (@Sendable () -> Void)?

    /// Options with a map of so many bytes; everything else by default.
    public init(mapByteCount: Int) {
      self.mapByteCount = mapByteCount
    }

    var flags: UInt32 {
      // Without MDB_NOTLS a read transaction's slot would belong to its thread until that ends, and could not be pooled.
      UInt32(MDB_NOTLS) | (noReadAhead ? UInt32(MDB_NORDAHEAD) : 0) | (noMetaSync ? UInt32(MDB_NOMETASYNC) : 0)
    }

    /// Traps on values out of range.
    func check() {
      if mapByteCount <= 0 { Trap.mapByteCountNotPositive() }
      if let maximumReaders, !(1...65_535).contains(maximumReaders) { Trap.maximumReadersOutOfRange() }
      if !(0...32_765).contains(maximumTables) { Trap.maximumTablesOutOfRange() }
    }
  }
}
