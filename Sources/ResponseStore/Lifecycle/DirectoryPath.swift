import Glibc

/// Paths of directories, by their bytes: a path need not be text.
enum DirectoryPath {
  /// The path from the root, without slashes at its end: with one, a symbolic link would be followed unseen.
  static func absolute(_ path: String) throws(StoreError) -> String {
    guard !path.isEmpty, !path.utf8.contains(0) else {
      throw StoreError(
        .unusableDirectory, directory: path, reason: "the path is empty or holds a zero byte",
        remedy: "Give the path of a directory")
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

  /// Makes a directory (0700) with what is missing above it (0755). One that is there already stays as it is.
  static func make(_ path: String) throws(StoreError) {
    if mkdir(path, 0o700) == 0 || errno == EEXIST { return }
    if errno == ENOENT {
      let bytes = Array(path.utf8)
      for index in bytes.indices.dropFirst() where bytes[index] == UInt8(ascii: "/") {
        let parent = String(decoding: bytes[..<index], as: UTF8.self)
        if mkdir(parent, 0o755) != 0, errno != EEXIST {
          throw .unusable(path, doing: "making the directories above it", errno)
        }
      }
      if mkdir(path, 0o700) == 0 || errno == EEXIST { return }
    }
    throw .unusable(path, doing: "making the directory", errno)
  }
}

extension StoreError {
  /// A call of the operating system on the directory or a file in it failed.
  static func unusable(_ path: String, doing what: String, _ code: CInt) -> StoreError {
    StoreError(
      .unusableDirectory, directory: path, reason: "\(what) failed: \(SystemErrorText.text(code))",
      remedy: "Choose a directory that this user may read and write, on a disk with free space")
  }
}

/// The operating system's words for its error numbers.
private enum SystemErrorText {
  static func text(_ code: CInt) -> String {
    // Not strerror, whose buffer threads share.
    withUnsafeTemporaryAllocation(of: CChar.self, capacity: 256) { buffer in
      buffer.initialize(repeating: 0)
      guard let start = buffer.baseAddress else { return "\(code)" }
      // On an unknown number it says so in the buffer; its result adds nothing.
      _ = strerror_r(code, start, 256)
      return String(cString: start)
    }
  }
}
