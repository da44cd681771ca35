import Glibc
import LMDB

/// Functions on paths of directories. They work on bytes, because a path need not be valid text.
enum DirectoryPath {
  /// Returns the absolute path, without slashes at its end.
  ///
  /// With such a slash, `lstat` would follow a symbolic link.
  static func absolute(_ path: String) throws(StoreError) -> String {
    guard !path.isEmpty, !path.utf8.contains(0) else {
      throw StoreError(
        .unusableDirectory, directory: path, reason: "the path is empty or contains a zero byte",
        remedy: "Specify the path of a directory")
    }
    var bytes = Array(path.utf8)
    if bytes[0] != UInt8(ascii: "/") {
      guard let working = getcwd(nil, 0) else { throw .unusable(path, doing: "finding the working directory", errno) }
      bytes =
        Array(UnsafeBufferPointer(start: working, count: strlen(working))).map { UInt8(bitPattern: $0) }
        + [UInt8(ascii: "/")] + bytes
      free(working)
    }
    while bytes.count > 1, bytes.last == UInt8(ascii: "/") { bytes.removeLast() }
    return String(decoding: bytes, as: UTF8.self)
  }

  /// Creates a directory (0700) and its missing parents (0755). An existing directory stays unchanged.
  static func make(_ path: String) throws(StoreError) {
    if mkdir(path, 0o700) == 0 || errno == EEXIST { return }
    if errno == ENOENT {
      let bytes = Array(path.utf8)
      for index in bytes.indices.dropFirst() where bytes[index] == UInt8(ascii: "/") {
        let parent = String(decoding: bytes[..<index], as: UTF8.self)
        if mkdir(parent, 0o755) != 0, errno != EEXIST {
          throw .unusable(path, doing: "making its parent directories", errno)
        }
      }
      if mkdir(path, 0o700) == 0 || errno == EEXIST { return }
    }
    throw .unusable(path, doing: "making the directory", errno)
  }
}

extension StoreError {
  /// Returns the error for a failed system call on the directory or a file in it.
  static func unusable(_ path: String, doing what: String, _ code: CInt) -> StoreError {
    let code = LMDBError.Code(rawValue: code)
    return ProcessLimits.error(code, directory: path, doing: what)
      ?? StoreError(
        .unusableDirectory, directory: path, reason: "\(what) failed: \(code)",
        remedy: "Choose a directory that this user may read and write, on a disk with free space")
  }
}
