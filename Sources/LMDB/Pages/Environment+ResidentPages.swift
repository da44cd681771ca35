internal import Glibc

extension Environment {
  /// Removes the pages of the map from this process's resident memory. They stay in the page cache, and the next access maps them
  /// again.
  ///
  /// A process that walks over the whole file would otherwise end with the whole file as its resident memory. Not for a process
  /// that serves lookups: each would fault its pages in again.
  /// - Parameter transaction: Keeps the map where it is.
  /// - Complexity: Reads `/proc/self/maps`, about 0.1 ms.
  public func releaseResidentPages(_ transaction: borrowing ReadTransaction) {
    var status = stat()
    guard let descriptor = try? dataDescriptor(),  // Without it nothing is released, which is no failure.
      fstat(descriptor, &status) == 0, let file = fopen("/proc/self/maps", "re")
    else { return }
    defer { fclose(file) }
    var line: UnsafeMutablePointer<CChar>?
    var capacity = 0
    defer { free(line) }
    while getline(&line, &capacity, file) > 0, let line {
      // 7f0000000000-7f0000100000 r--s 00000000 fd:01 1234 /path/data.mdb
      let fields = String(cString: line).split(separator: " ", maxSplits: 5, omittingEmptySubsequences: true)
      guard fields.count >= 5, fields[1].hasSuffix("s"), fields[4] == "\(status.st_ino)" else { continue }
      let bounds = fields[0].split(separator: "-").compactMap { UInt($0, radix: 16) }
      guard bounds.count == 2, bounds[0] < bounds[1], let start = UnsafeMutableRawPointer(bitPattern: bounds[0]) else {
        continue
      }
      // In a shared mapping of a file nothing is lost by this, whichever file it is.
      madvise(start, Int(bounds[1] - bounds[0]), MADV_DONTNEED)
    }
  }
}
