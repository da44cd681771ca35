import CLMDB
import Foundation
import LMDB
import Testing

@Suite("Errors")
struct LMDBErrorTests {
  static let headerCodes: [(LMDBError.Code, CInt, String)] = [
    (.notFound, CLMDB.MDB_NOTFOUND, "MDB_NOTFOUND"),
    (.pageNotFound, CLMDB.MDB_PAGE_NOTFOUND, "MDB_PAGE_NOTFOUND"),
    (.corrupted, CLMDB.MDB_CORRUPTED, "MDB_CORRUPTED"),
    (.panic, CLMDB.MDB_PANIC, "MDB_PANIC"),
    (.versionMismatch, CLMDB.MDB_VERSION_MISMATCH, "MDB_VERSION_MISMATCH"),
    (.invalid, CLMDB.MDB_INVALID, "MDB_INVALID"),
    (.mapFull, CLMDB.MDB_MAP_FULL, "MDB_MAP_FULL"),
    (.tablesFull, CLMDB.MDB_DBS_FULL, "MDB_DBS_FULL"),
    (.readersFull, CLMDB.MDB_READERS_FULL, "MDB_READERS_FULL"),
    (.transactionFull, CLMDB.MDB_TXN_FULL, "MDB_TXN_FULL"),
    (.cursorFull, CLMDB.MDB_CURSOR_FULL, "MDB_CURSOR_FULL"),
    (.mapResized, CLMDB.MDB_MAP_RESIZED, "MDB_MAP_RESIZED"),
    (.incompatible, CLMDB.MDB_INCOMPATIBLE, "MDB_INCOMPATIBLE"),
    (.badTransaction, CLMDB.MDB_BAD_TXN, "MDB_BAD_TXN"),
    (.badValueSize, CLMDB.MDB_BAD_VALSIZE, "MDB_BAD_VALSIZE"),
    (.badTableHandle, CLMDB.MDB_BAD_DBI, "MDB_BAD_DBI"),
  ]

  @Test("Each code has the number of the C header and includes its name in the text", arguments: headerCodes)
  func headerCode(code: LMDBError.Code, number: CInt, name: String) {
    #expect(code.rawValue == number)
    #expect(code.description.hasPrefix("\(name): "))
    #expect(code.description.hasSuffix("(\(number))"))
  }

  @Test(
    "Each errno has the operating system's number and text",
    arguments: [
      (LMDBError.Code.noSuchFile, ENOENT), (.inputOutput, EIO), (.outOfMemory, ENOMEM),
      (.accessDenied, EACCES), (.temporarilyUnavailable, EAGAIN),
      (.invalidArgument, EINVAL), (.fileTooLarge, EFBIG), (.noSpace, ENOSPC), (.readOnlyFileSystem, EROFS),
      (.quotaExceeded, EDQUOT),
    ])
  func errno(code: LMDBError.Code, number: CInt) {
    #expect(code.rawValue == number)
    #expect(code.description == "\(String(cString: strerror(number))) (\(number))")
  }

  @Test("The description contains the function and the reason")
  func description() {
    let error = LMDBError(code: .mapFull, function: "mdb_put")
    #expect("\(error)" == "mdb_put failed: MDB_MAP_FULL: Environment mapsize limit reached (-30792)")
    #expect("\(LMDBError(code: .init(rawValue: 99_999), function: "f"))".hasPrefix("f failed: Unknown error"))
  }

  @Test("A catch clause matches one code, with typed and untyped errors")
  func patternMatching() {
    func thrown(_ code: LMDBError.Code) throws { throw LMDBError(code: code, function: "f") }
    func typed(_ code: LMDBError.Code) throws(LMDBError) { throw LMDBError(code: code, function: "f") }
    do {
      try thrown(.mapFull)
      Issue.record("nothing thrown")
    } catch LMDBError.Code.notFound {
      Issue.record("the wrong clause")
    } catch LMDBError.Code.mapFull {
      // Expected.
    } catch {
      Issue.record("no clause")
    }
    do throws(LMDBError) {
      try typed(.panic)
      Issue.record("nothing thrown")
    } catch LMDBError.Code.mapFull {
      Issue.record("the wrong clause")
    } catch {
      #expect(error.code == .panic)
    }
  }

  @Test("The loaded library has the version of the compiled header")
  func version() {
    var major: CInt = 0
    var minor: CInt = 0
    var patch: CInt = 0
    mdb_version(&major, &minor, &patch)
    #expect(clmdb_header_version() == major << 24 | minor << 16 | patch)
  }

  @Test("Only versions 0.9 of liblmdb are used, whose files have the known layout")
  func libraryVersion() {
    #expect(LoadedLibrary.failure == nil)
    #expect(LoadedLibrary.failure(major: 0, minor: 9) == nil)
    for (major, minor) in [(0, 8), (0, 10), (1, 9)] as [(CInt, CInt)] {
      #expect(LoadedLibrary.failure(major: major, minor: minor)?.code == .unsupportedLibrary)
    }
  }
}
