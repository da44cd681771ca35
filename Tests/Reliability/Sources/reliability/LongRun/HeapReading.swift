import Foundation
import Glibc

/// The memory, descriptors and threads of this process at a time when no request is in progress.
struct HeapReading: Sendable {
  /// The number of operations before it.
  var operationCount: Int
  /// The bytes that are allocated and not freed. Free memory that the allocator keeps is not counted, so fragmentation
  /// does not change them.
  var allocatedByteCount: Int
  /// The bytes that the allocator has from the system, with its free memory.
  var heapByteCount: Int
  var residentByteCount: Int
  var descriptorCount: Int
  var threadCount: Int

  /// Reads the values of this process.
  init(operationCount: Int) {
    self.operationCount = operationCount
    (allocatedByteCount, heapByteCount) = Self.heap
    residentByteCount = Self.residentByteCount
    descriptorCount = Self.count("/proc/self/fd")
    threadCount = Self.count("/proc/self/task")
  }

  /// Reads the allocator's own report, which Swift cannot import.
  private static var heap: (allocated: Int, total: Int) {
    typealias Report = @convention(c) (CInt, UnsafeMutablePointer<FILE>?) -> CInt
    var text: UnsafeMutablePointer<CChar>?
    var count = 0
    guard let report = dlsym(nil, "malloc_info").map({ unsafeBitCast($0, to: Report.self) }),
      let file = open_memstream(&text, &count)
    else { fail("the allocator does not report") }
    _ = report(0, file)
    fclose(file)
    defer { free(text) }
    // The totals of all arenas are behind the last of them.
    let lines = String(cString: text!).split(separator: "\n").reversed().prefix { $0 != "</heap>" }
    func size(_ start: String) -> Int {
      guard let line = lines.first(where: { $0.hasPrefix(start) }),
        let number = line.split(separator: "size=\"").last?.prefix(while: \.isNumber)
      else { fail("the allocator does not report \(start)") }
      return Int(number) ?? 0
    }
    let total = size("<system type=\"current\"") + size("<total type=\"mmap\"")
    return (total - size("<total type=\"fast\"") - size("<total type=\"rest\""), total)
  }

  private static func count(_ directory: String) -> Int {
    (try? FileManager.default.contentsOfDirectory(atPath: directory).count) ?? 0  // /proc can always be read.
  }

  private static var residentByteCount: Int {
    guard let text = FileManager.default.contents(atPath: "/proc/self/statm") else { return 0 }
    let fields = String(decoding: text, as: UTF8.self).split(separator: " ")
    return fields.count > 1 ? (Int(fields[1]) ?? 0) * sysconf(CInt(_SC_PAGESIZE)) : 0
  }

  // MARK: As a line of a child's output

  private static let prefix = "reading"

  var line: String {
    let numbers = [
      operationCount, allocatedByteCount, heapByteCount, residentByteCount, descriptorCount, threadCount,
    ]
    return "\(Self.prefix) " + numbers.map(String.init).joined(separator: " ")
  }

  /// Returns nil for a line that is no reading.
  init?(line: some StringProtocol) {
    let words = line.split(separator: " ")
    let numbers = words.dropFirst().compactMap { Int($0) }
    guard words.first ?? "" == Self.prefix, numbers.count == 6 else { return nil }
    operationCount = numbers[0]
    allocatedByteCount = numbers[1]
    heapByteCount = numbers[2]
    residentByteCount = numbers[3]
    descriptorCount = numbers[4]
    threadCount = numbers[5]
  }
}
