import FoundationEssentials
import Glibc

/// The content of a regular file, and the properties that identify its version.
struct FileContent: Sendable {
  let bytes: Data
  /// The time of the last change, in seconds since 1970.
  let modified: Int
  /// The nanoseconds in addition to `modified`.
  let nanoseconds: Int

  /// Reads a file; nil if it does not exist, is not a regular file, or is not readable.
  init?(path: String) {
    // O_NONBLOCK: opening a pipe must not wait for a writer.
    let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
    var content = Data(count: Int(status.st_size))
    var filled = 0
    while filled < content.count {
      let count = content.withUnsafeMutableBytes { buffer in
        read(descriptor, buffer.baseAddress! + filled, buffer.count - filled)
      }
      if count < 0 && errno == EINTR { continue }
      guard count > 0 else { break }
      filled += count
    }
    bytes = content.prefix(filled)
    modified = status.st_mtim.tv_sec
    nanoseconds = status.st_mtim.tv_nsec
  }

  /// A strong entity tag from size, time of change and a hash (FNV-1a, 64 bits) of the bytes.
  var entityTag: String {
    let hash = bytes.withUnsafeBytes { buffer in
      var hash: UInt64 = 0xcbf2_9ce4_8422_2325
      for byte in buffer { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
      return hash
    }
    let parts = [UInt64(bytes.count), UInt64(bitPattern: Int64(modified)), UInt64(nanoseconds), hash]
    return "\"" + parts.map { String($0, radix: 16) }.joined(separator: "-") + "\""
  }
}
