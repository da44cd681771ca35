internal import CLMDB
internal import Glibc

extension LMDBError {
  /// A return code of liblmdb (negative) or an `errno` of the operating system (positive).
  ///
  /// A struct and not an enum: a library version with more codes must not break callers.
  public struct Code: RawRepresentable, Sendable, Hashable {
    /// The number as C has it.
    public let rawValue: CInt

    /// Wraps any number.
    public init(rawValue: CInt) {
      self.rawValue = rawValue
    }

    // MARK: liblmdb

    /// The key is there already, and the call was not to replace it. C: `MDB_KEYEXIST`.
    public static let keyExists = Code(rawValue: CLMDB.MDB_KEYEXIST)

    /// No such key, or the end of the table. Methods of this module return nil or false instead. C: `MDB_NOTFOUND`.
    public static let notFound = Code(rawValue: CLMDB.MDB_NOTFOUND)

    /// A page is missing: the data file is damaged. C: `MDB_PAGE_NOTFOUND`.
    public static let pageNotFound = Code(rawValue: CLMDB.MDB_PAGE_NOTFOUND)

    /// A page has the wrong type: the data file is damaged. C: `MDB_CORRUPTED`.
    public static let corrupted = Code(rawValue: CLMDB.MDB_CORRUPTED)

    /// An earlier write failed in a way that leaves the environment unusable until it is opened anew. C: `MDB_PANIC`.
    public static let panic = Code(rawValue: CLMDB.MDB_PANIC)

    /// Data or lock file belong to another version of liblmdb. C: `MDB_VERSION_MISMATCH`.
    public static let versionMismatch = Code(rawValue: CLMDB.MDB_VERSION_MISMATCH)

    /// The data file is not one of LMDB's. C: `MDB_INVALID`.
    public static let invalid = Code(rawValue: CLMDB.MDB_INVALID)

    /// The map, and so the file, is full. The transaction cannot go on; reads are unaffected. C: `MDB_MAP_FULL`.
    public static let mapFull = Code(rawValue: CLMDB.MDB_MAP_FULL)

    /// More tables than ``Environment/Options/maximumTables``. C: `MDB_DBS_FULL`.
    public static let tablesFull = Code(rawValue: CLMDB.MDB_DBS_FULL)

    /// More simultaneous read transactions, in all processes, than the lock file has room for. C: `MDB_READERS_FULL`.
    public static let readersFull = Code(rawValue: CLMDB.MDB_READERS_FULL)

    /// The write transaction changed too many pages. C: `MDB_TXN_FULL`.
    public static let transactionFull = Code(rawValue: CLMDB.MDB_TXN_FULL)

    /// The tree is deeper than a cursor can follow: the data file is damaged. C: `MDB_CURSOR_FULL`.
    public static let cursorFull = Code(rawValue: CLMDB.MDB_CURSOR_FULL)

    /// A page has less room than its header says; an internal error of liblmdb. C: `MDB_PAGE_FULL`.
    public static let pageFull = Code(rawValue: CLMDB.MDB_PAGE_FULL)

    /// Another process made the map larger. ``Environment`` adopts the new size by itself; this is thrown only where it
    /// cannot, inside of another transaction of the same thread. C: `MDB_MAP_RESIZED`.
    public static let mapResized = Code(rawValue: CLMDB.MDB_MAP_RESIZED)

    /// The table's kind does not permit the operation. C: `MDB_INCOMPATIBLE`.
    public static let incompatible = Code(rawValue: CLMDB.MDB_INCOMPATIBLE)

    /// A reader slot was taken by something else. C: `MDB_BAD_RSLOT`.
    public static let badReaderSlot = Code(rawValue: CLMDB.MDB_BAD_RSLOT)

    /// The transaction failed before and can only be aborted. C: `MDB_BAD_TXN`.
    public static let badTransaction = Code(rawValue: CLMDB.MDB_BAD_TXN)

    /// A key is empty or longer than ``Environment/maximumKeyByteCount``, or a value is too long. C: `MDB_BAD_VALSIZE`.
    public static let badValueSize = Code(rawValue: CLMDB.MDB_BAD_VALSIZE)

    /// A table handle that is not open. C: `MDB_BAD_DBI`.
    public static let badTableHandle = Code(rawValue: CLMDB.MDB_BAD_DBI)

    /// An internal inconsistency; liblmdb later than 0.9.24 reports it. C: `MDB_PROBLEM`, given by number since the
    /// header of 0.9.24 lacks it.
    public static let problem = Code(rawValue: -30_779)

    // MARK: The operating system

    /// C: `EPERM`.
    public static let notPermitted = Code(rawValue: Glibc.EPERM)

    /// The directory does not exist. C: `ENOENT`.
    public static let noSuchFile = Code(rawValue: Glibc.ENOENT)

    /// A read or write failed. liblmdb also reports a disk that ran full in the middle of a write so. C: `EIO`.
    public static let inputOutput = Code(rawValue: Glibc.EIO)

    /// Not enough memory or address space for the map. C: `ENOMEM`.
    public static let outOfMemory = Code(rawValue: Glibc.ENOMEM)

    /// Directory or file may not be read or written by this user. C: `EACCES`.
    public static let accessDenied = Code(rawValue: Glibc.EACCES)

    /// The lock is held by another process. C: `EAGAIN`.
    public static let temporarilyUnavailable = Code(rawValue: Glibc.EAGAIN)

    /// The path is not a directory. C: `ENOTDIR`.
    public static let notDirectory = Code(rawValue: Glibc.ENOTDIR)

    /// The data file's name belongs to a directory. C: `EISDIR`.
    public static let isDirectory = Code(rawValue: Glibc.EISDIR)

    /// An argument that liblmdb refuses. C: `EINVAL`.
    public static let invalidArgument = Code(rawValue: Glibc.EINVAL)

    /// Past the process's limit on file sizes. C: `EFBIG`.
    public static let fileTooLarge = Code(rawValue: Glibc.EFBIG)

    /// The disk is full. C: `ENOSPC`.
    public static let noSpace = Code(rawValue: Glibc.ENOSPC)

    /// The file system is mounted read-only. C: `EROFS`.
    public static let readOnlyFileSystem = Code(rawValue: Glibc.EROFS)

    /// The user's disk quota is exhausted. C: `EDQUOT`.
    public static let quotaExceeded = Code(rawValue: Glibc.EDQUOT)

    // MARK: This module

    /// The environment was opened by the process that forked this one; open the directory anew. No C name.
    public static let forked = Code(rawValue: -30_600)

    /// Stored bytes that the table's codec cannot read: damage, or a table opened with another codec. No C name.
    public static let undecodable = Code(rawValue: -30_601)

    /// The directory is open in this process, but its `data.mdb` was since renamed, removed or replaced. No C name.
    public static let dataFileReplaced = Code(rawValue: -30_602)
  }
}
