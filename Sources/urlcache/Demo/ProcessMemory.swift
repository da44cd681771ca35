import Foundation

/// The memory of this process.
enum ProcessMemory {
  /// The resident memory in bytes, including mapped files; 0 if unknown.
  static var residentByteCount: Int {
    // The second number is the resident set in pages, see proc(5). A system without /proc has no figure.
    guard let text = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8),
      let pages = text.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
    else { return 0 }
    return pages * sysconf(Int32(_SC_PAGESIZE))
  }
}
