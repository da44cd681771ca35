internal import CLMDB
internal import Glibc

extension LMDBError {
  /// A return code of liblmdb (negative), or an `errno` of the operating system (positive).
  ///
  /// A struct instead of an enum, so that a library version with more codes does not break callers.
  public struct Code: RawRepresentable, Sendable, Hashable {
    /// The C value.
    public let rawValue: CInt

    /// Wraps any value.
    public init(rawValue: CInt) {
      self.rawValue = rawValue
    }

    // MARK: liblmdb

    /// The key does not exist, or the table ends.
    ///
    /// Methods of this module return nil or false instead. C: `MDB_NOTFOUND`.
    public static let notFound = Code(rawValue: CLMDB.MDB_NOTFOUND)

    /// A page is missing: the data file is corrupt. C: `MDB_PAGE_NOTFOUND`.
    public static let pageNotFound = Code(rawValue: CLMDB.MDB_PAGE_NOTFOUND)

    /// A page has the wrong type: the data file is corrupt. C: `MDB_CORRUPTED`.
    public static let corrupted = Code(rawValue: CLMDB.MDB_CORRUPTED)

    /// An earlier failed write, or a close, made the environment unusable until it is reopened. C: `MDB_PANIC`.
    public static let panic = Code(rawValue: CLMDB.MDB_PANIC)

    /// The data file or the lock file belongs to another version of liblmdb. C: `MDB_VERSION_MISMATCH`.
    public static let versionMismatch = Code(rawValue: CLMDB.MDB_VERSION_MISMATCH)

    /// The data file is not an LMDB file. C: `MDB_INVALID`.
    public static let invalid = Code(rawValue: CLMDB.MDB_INVALID)

    /// The map, and therefore the file, is full.
    ///
    /// The transaction cannot continue; reads are unaffected. C: `MDB_MAP_FULL`.
    public static let mapFull = Code(rawValue: CLMDB.MDB_MAP_FULL)

    /// The number of tables exceeds ``LMDBEnvironment/Options/maximumTables``. C: `MDB_DBS_FULL`.
    public static let tablesFull = Code(rawValue: CLMDB.MDB_DBS_FULL)

    /// All processes together have more read transactions than the lock file has reader slots. C: `MDB_READERS_FULL`.
    public static let readersFull = Code(rawValue: CLMDB.MDB_READERS_FULL)

    /// The write transaction changed too many pages. C: `MDB_TXN_FULL`.
    public static let transactionFull = Code(rawValue: CLMDB.MDB_TXN_FULL)

    /// The tree is deeper than a cursor can follow: the data file is corrupt. C: `MDB_CURSOR_FULL`.
    public static let cursorFull = Code(rawValue: CLMDB.MDB_CURSOR_FULL)

    /// Another process enlarged the map. C: `MDB_MAP_RESIZED`.
    ///
    /// ``LMDBEnvironment`` adopts the new size itself. The error occurs only if it cannot: within another transaction
    /// of the thread, or if running reads prevent a reader from moving the map.
    public static let mapResized = Code(rawValue: CLMDB.MDB_MAP_RESIZED)

    /// The table's kind does not support the operation. C: `MDB_INCOMPATIBLE`.
    public static let incompatible = Code(rawValue: CLMDB.MDB_INCOMPATIBLE)

    /// The transaction failed before and can only be aborted. C: `MDB_BAD_TXN`.
    public static let badTransaction = Code(rawValue: CLMDB.MDB_BAD_TXN)

    /// A key is empty or longer than ``LMDBEnvironment/maximumKeyByteCount``, or a value is too long.
    /// C: `MDB_BAD_VALSIZE`.
    public static let badValueSize = Code(rawValue: CLMDB.MDB_BAD_VALSIZE)

    /// The table handle is not open. C: `MDB_BAD_DBI`.
    public static let badTableHandle = Code(rawValue: CLMDB.MDB_BAD_DBI)

    /// An internal inconsistency, reported by liblmdb after 0.9.24. C: `MDB_PROBLEM`, which the header of 0.9.24 lacks.
    public static let problem = Code(rawValue: -30_779)

    // MARK: The operating system

    /// The directory does not exist. C: `ENOENT`.
    public static let noSuchFile = Code(rawValue: Glibc.ENOENT)

    /// A read or write failed. liblmdb also reports a disk that fills up during a write this way. C: `EIO`.
    public static let inputOutput = Code(rawValue: Glibc.EIO)

    /// There is not enough memory or address space for the map. C: `ENOMEM`.
    public static let outOfMemory = Code(rawValue: Glibc.ENOMEM)

    /// This user must not read or write the directory or file. C: `EACCES`.
    public static let accessDenied = Code(rawValue: Glibc.EACCES)

    /// Another process holds the lock. C: `EAGAIN`.
    public static let temporarilyUnavailable = Code(rawValue: Glibc.EAGAIN)

    /// liblmdb rejects an argument. C: `EINVAL`.
    public static let invalidArgument = Code(rawValue: Glibc.EINVAL)

    /// The file would exceed the process's limit on file sizes. C: `EFBIG`.
    public static let fileTooLarge = Code(rawValue: Glibc.EFBIG)

    /// The disk is full. C: `ENOSPC`.
    public static let noSpace = Code(rawValue: Glibc.ENOSPC)

    /// The file system is mounted read-only. C: `EROFS`.
    public static let readOnlyFileSystem = Code(rawValue: Glibc.EROFS)

    /// The user's disk quota is exhausted. C: `EDQUOT`.
    public static let quotaExceeded = Code(rawValue: Glibc.EDQUOT)

    // MARK: This module

    /// The environment was opened by the parent of this forked process; open the directory again. No C name.
    public static let forked = Code(rawValue: -30_600)

    /// The table's codec cannot decode the stored bytes: they are corrupt, or written with another codec. No C name.
    public static let undecodable = Code(rawValue: -30_601)

    /// The lock file is not the one that the other processes of the directory have open. No C name.
    public static let lockFileReplaced = Code(rawValue: -30_604)

    /// The loaded liblmdb is not a version 0.9, so that the layout of its files is not known. No C name.
    public static let unsupportedLibrary = Code(rawValue: -30_603)
  }
}
