import Foundation

/// A report of the kernel about the memory mappings of this process.
///
/// Tests of several modules refer to this file through symbolic links.
enum MappingReport {
  /// Returns the lines of `/proc/self/smaps` from the shared mapping of a file on; empty if the file is not mapped.
  static func lines(ofFile path: String) -> ArraySlice<Substring> {
    var status = stat()
    // `String(contentsOfFile:)` would read only the first page of `smaps`.
    guard stat(path, &status) == 0, let stream = fopen("/proc/self/smaps", "re") else { return [] }
    defer { fclose(stream) }
    var text = [UInt8]()
    var buffer = [UInt8](repeating: 0, count: 1 << 16)
    while case let count = fread(&buffer, 1, buffer.count, stream), count > 0 { text += buffer[..<count] }
    let lines = String(decoding: text, as: UTF8.self).split(separator: "\n")
    let start = lines.firstIndex { $0.contains("s 00000000 ") && $0.contains(" \(status.st_ino) ") }
    return lines[(start ?? lines.endIndex)...]
  }
}
