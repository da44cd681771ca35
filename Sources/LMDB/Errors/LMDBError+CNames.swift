// The C names lead to the Swift names: a use of a C name does not compile, and the message contains the Swift name.
// swift-format-ignore-file: AlwaysUseLowerCamelCase, AllPublicDeclarationsHaveDocumentation

extension LMDBError.Code {
  @available(*, unavailable, renamed: "keyExists")
  public static var MDB_KEYEXIST: LMDBError.Code { .keyExists }
  @available(*, unavailable, renamed: "notFound")
  public static var MDB_NOTFOUND: LMDBError.Code { .notFound }
  @available(*, unavailable, renamed: "pageNotFound")
  public static var MDB_PAGE_NOTFOUND: LMDBError.Code { .pageNotFound }
  @available(*, unavailable, renamed: "corrupted")
  public static var MDB_CORRUPTED: LMDBError.Code { .corrupted }
  @available(*, unavailable, renamed: "panic")
  public static var MDB_PANIC: LMDBError.Code { .panic }
  @available(*, unavailable, renamed: "versionMismatch")
  public static var MDB_VERSION_MISMATCH: LMDBError.Code { .versionMismatch }
  @available(*, unavailable, renamed: "invalid")
  public static var MDB_INVALID: LMDBError.Code { .invalid }
  @available(*, unavailable, renamed: "mapFull")
  public static var MDB_MAP_FULL: LMDBError.Code { .mapFull }
  @available(*, unavailable, renamed: "tablesFull")
  public static var MDB_DBS_FULL: LMDBError.Code { .tablesFull }
  @available(*, unavailable, renamed: "readersFull")
  public static var MDB_READERS_FULL: LMDBError.Code { .readersFull }
  @available(*, unavailable, renamed: "transactionFull")
  public static var MDB_TXN_FULL: LMDBError.Code { .transactionFull }
  @available(*, unavailable, renamed: "cursorFull")
  public static var MDB_CURSOR_FULL: LMDBError.Code { .cursorFull }
  @available(*, unavailable, renamed: "pageFull")
  public static var MDB_PAGE_FULL: LMDBError.Code { .pageFull }
  @available(*, unavailable, renamed: "mapResized")
  public static var MDB_MAP_RESIZED: LMDBError.Code { .mapResized }
  @available(*, unavailable, renamed: "incompatible")
  public static var MDB_INCOMPATIBLE: LMDBError.Code { .incompatible }
  @available(*, unavailable, renamed: "badReaderSlot")
  public static var MDB_BAD_RSLOT: LMDBError.Code { .badReaderSlot }
  @available(*, unavailable, renamed: "badTransaction")
  public static var MDB_BAD_TXN: LMDBError.Code { .badTransaction }
  @available(*, unavailable, renamed: "badValueSize")
  public static var MDB_BAD_VALSIZE: LMDBError.Code { .badValueSize }
  @available(*, unavailable, renamed: "badTableHandle")
  public static var MDB_BAD_DBI: LMDBError.Code { .badTableHandle }
  @available(*, unavailable, renamed: "problem")
  public static var MDB_PROBLEM: LMDBError.Code { .problem }
  @available(*, unavailable, renamed: "notPermitted")
  public static var EPERM: LMDBError.Code { .notPermitted }
  @available(*, unavailable, renamed: "noSuchFile")
  public static var ENOENT: LMDBError.Code { .noSuchFile }
  @available(*, unavailable, renamed: "inputOutput")
  public static var EIO: LMDBError.Code { .inputOutput }
  @available(*, unavailable, renamed: "outOfMemory")
  public static var ENOMEM: LMDBError.Code { .outOfMemory }
  @available(*, unavailable, renamed: "accessDenied")
  public static var EACCES: LMDBError.Code { .accessDenied }
  @available(*, unavailable, renamed: "temporarilyUnavailable")
  public static var EAGAIN: LMDBError.Code { .temporarilyUnavailable }
  @available(*, unavailable, renamed: "notDirectory")
  public static var ENOTDIR: LMDBError.Code { .notDirectory }
  @available(*, unavailable, renamed: "isDirectory")
  public static var EISDIR: LMDBError.Code { .isDirectory }
  @available(*, unavailable, renamed: "invalidArgument")
  public static var EINVAL: LMDBError.Code { .invalidArgument }
  @available(*, unavailable, renamed: "fileTooLarge")
  public static var EFBIG: LMDBError.Code { .fileTooLarge }
  @available(*, unavailable, renamed: "noSpace")
  public static var ENOSPC: LMDBError.Code { .noSpace }
  @available(*, unavailable, renamed: "readOnlyFileSystem")
  public static var EROFS: LMDBError.Code { .readOnlyFileSystem }
  @available(*, unavailable, renamed: "quotaExceeded")
  public static var EDQUOT: LMDBError.Code { .quotaExceeded }
}
