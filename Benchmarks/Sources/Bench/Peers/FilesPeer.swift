import Foundation

/// One file per entry in 256 folders, named by a hash of the URL, like SDURLCache; with system calls alone.
///
/// A file has head and body. Reads use open, fstat, read and close. Writes use a temporary file and rename, with
/// fdatasync if they are synced.
final class FilesPeer: Peer {
  static let name = "one file per entry"

  private let fixture: Fixture
  private let folder: String
  private let urls: [String]

  init(folder: String, fixture: Fixture) throws {
    self.fixture = fixture
    self.folder = folder
    urls = (0..<fixture.count).map { fixture.url($0) }
    for number in 0..<256 { mkdir("\(folder)/\(Self.hex(UInt64(number), digits: 2))", 0o700) }
  }

  private static func hex(_ value: UInt64, digits: Int) -> String {
    let text = String(value, radix: 16)
    return String(repeating: "0", count: max(0, digits - text.count)) + text
  }

  /// Calls `body` with the path of a URL's file as a C string.
  private func withPath<R>(_ url: String, _ body: (UnsafePointer<CChar>) -> R) -> R {
    // FNV-1a with two start values: 128 bits.
    var first: UInt64 = 0xcbf2_9ce4_8422_2325
    var second: UInt64 = 0x6c62_272e_07bb_0142
    for byte in url.utf8 {
      first = (first ^ UInt64(byte)) &* 0x100_0000_01b3
      second = (second ^ UInt64(byte)) &* 0x1000_0000_01b3
    }
    return withUnsafeTemporaryAllocation(of: CChar.self, capacity: folder.utf8.count + 40) { buffer in
      var end = 0
      for byte in folder.utf8 {
        buffer[end] = CChar(bitPattern: byte)
        end += 1
      }
      buffer[end] = 0x2F
      end += 1
      for (word, start) in [(first, 0), (second, 16)] {
        for digit in 0..<16 {
          let nibble = UInt8(truncatingIfNeeded: word >> UInt64(60 - digit * 4)) & 15
          buffer[end] = CChar(bitPattern: nibble < 10 ? 0x30 + nibble : 0x57 + nibble)
          end += 1
          if start + digit == 1 {
            buffer[end] = 0x2F
            end += 1
          }
        }
      }
      buffer[end] = 0
      return body(buffer.baseAddress!)
    }
  }

  func store(_ range: Range<Int>) throws {
    for index in range { try write(index, synced: false) }
  }

  /// Writes an entry's file.
  ///
  /// - Parameter synced: Whether the bytes are durable before the file gets its name.
  func write(_ index: Int, synced: Bool) throws {
    let head = fixture.head(index)
    let body = fixture.body(index)
    let isWritten = withPath(urls[index]) { path -> Bool in
      let temporary = folder + "/writing"
      let descriptor = open(temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0o600)
      guard descriptor >= 0 else { return false }
      var headByteCount = UInt32(head.count)
      let isComplete = head.withUnsafeBytes { head in
        body.withUnsafeBytes { body in
          withUnsafeMutableBytes(of: &headByteCount) { count in
            var parts = [
              iovec(iov_base: count.baseAddress, iov_len: 4),
              iovec(iov_base: UnsafeMutableRawPointer(mutating: head.baseAddress), iov_len: head.count),
              iovec(iov_base: UnsafeMutableRawPointer(mutating: body.baseAddress), iov_len: body.count),
            ]
            return writev(descriptor, &parts, 3) == 4 + head.count + body.count
          }
        }
      }
      if synced { fdatasync(descriptor) }
      Glibc.close(descriptor)
      return isComplete && rename(temporary, path) == 0
    }
    if !isWritten { throw BenchError("a file could not be written: \(errno)") }
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      let count = withContents(Int(pick)) { $0.count }
      guard count > 0 else { return 0 }
      sum &+= count
    }
    return sum
  }

  private func withContents(_ index: Int, _ body: (UnsafeRawBufferPointer) -> Int) -> Int {
    withPath(urls[index]) { path in
      let descriptor = open(path, O_RDONLY | O_CLOEXEC)
      guard descriptor >= 0 else { return 0 }
      defer { Glibc.close(descriptor) }
      var status = stat()
      guard fstat(descriptor, &status) == 0, let memory = malloc(Int(status.st_size)) else { return 0 }
      defer { free(memory) }
      guard Glibc.read(descriptor, memory, Int(status.st_size)) == Int(status.st_size) else { return 0 }
      let headByteCount = Int(memory.load(as: UInt32.self))
      return body(
        UnsafeRawBufferPointer(start: memory + 4 + headByteCount, count: Int(status.st_size) - 4 - headByteCount))
    }
  }

  func body(_ index: Int) -> Data? {
    var data: Data?
    _ = withContents(index) { body in
      data = Data(body)
      return body.count
    }
    return data
  }

  /// Removes an entry's file.
  func remove(_ index: Int) {
    withPath(urls[index]) { path in _ = unlink(path) }
  }

  /// Removes the files that were changed after a date. Reads the date of every file, as there is no index.
  func removeAll(changedAfter seconds: Double) -> Int {
    var removed = 0
    for number in 0..<256 {
      let path = "\(folder)/\(Self.hex(UInt64(number), digits: 2))"
      guard let directory = opendir(path) else { continue }
      defer { closedir(directory) }
      let descriptor = dirfd(directory)
      while let entry = readdir(directory) {
        withUnsafePointer(to: &entry.pointee.d_name) { tuple in
          tuple.withMemoryRebound(to: CChar.self, capacity: 256) { name in
            var status = stat()
            guard fstatat(descriptor, name, &status, 0) == 0, status.st_mode & S_IFMT == S_IFREG else { return }
            let changed = Double(status.st_mtim.tv_sec) + Double(status.st_mtim.tv_nsec) / 1e9
            if changed > seconds, unlinkat(descriptor, name, 0) == 0 { removed += 1 }
          }
        }
      }
    }
    return removed
  }

  func close() {}
}
