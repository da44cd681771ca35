internal import CLMDB

/// The liblmdb that this process has loaded. It can be another version than the one whose header was compiled.
package enum LoadedLibrary {
  /// The error of opening an environment with this library; nil if its layout of files is known.
  package static let failure: LMDBError? = {
    var (major, minor, patch): (CInt, CInt, CInt) = (0, 0, 0)
    mdb_version(&major, &minor, &patch)
    return failure(major: major, minor: minor)
  }()

  /// All versions 0.9 have the layout that this folder and ``LockFile`` describe. Later ones have the same library
  /// name.
  package static func failure(major: CInt, minor: CInt) -> LMDBError? {
    major == 0 && minor == 9 ? nil : LMDBError(code: .unsupportedLibrary, function: "mdb_env_open")
  }
}
