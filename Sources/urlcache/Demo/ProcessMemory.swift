import Foundation

/// What the operating system says of this process.
enum ProcessMemory {
  /// The bytes of memory that the process takes now, mapped files included; 0 where it cannot be told.
  static var residentByteCount: Int {
    // The second number is the resident set in pages, see proc(5). Without it the demonstration shows 0.
    guard let text = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8),
      let pages = text.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
    else { return 0 }
    return pages * sysconf(Int32(_SC_PAGESIZE))
  }
}
