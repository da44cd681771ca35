internal import Glibc

/// Removes the pages of the map from this process's resident memory. They stay in the page cache.
///
/// Without this, a process that scans the whole file would have all of it as resident memory. Do not use it in a
/// process that serves lookups, because each lookup would fault its pages in again.
public struct ResidentPages: Sendable {
  /// The address range of the map, if known.
  private var bounds: Range<UInt>?

  /// Creates a value without knowledge of the map's address.
  public init() {}

  /// The size of the pages of files in this process's resident memory, in bytes; nil without `/proc`.
  public static var fileByteCount: Int? {
    guard let file = fopen("/proc/self/statm", "re") else { return nil }
    defer { fclose(file) }
    var text = [CChar](repeating: 0, count: 128)
    guard fgets(&text, CInt(text.count), file) != nil else { return nil }
    // The third number is that of the pages of files, see proc(5).
    let fields = String(decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self).split(
      separator: " ")
    return fields.dropFirst(2).first.flatMap { Int($0) }.map { $0 * sysconf(CInt(_SC_PAGESIZE)) }
  }

  /// Releases all pages.
  ///
  /// - Parameters:
  ///   - environment: The environment of the transaction.
  ///   - transaction: A transaction, which keeps the map in place.
  /// - Complexity: Two system calls. The first call, and a call after the map has moved, also read `/proc/self/maps` in
  ///   about 0.1 ms.
  public mutating func release(of environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction) {
    if !isMap(bounds, environment, transaction) { bounds = Self.mapBounds(of: environment) }
    guard let bounds, let start = UnsafeMutableRawPointer(bitPattern: bounds.lowerBound) else { return }
    // For a shared mapping of a file this loses no data.
    madvise(start, bounds.count, MADV_DONTNEED)
  }

  /// Releases the pages of a value, such as a large one that was just copied, and the pages next to it that the kernel
  /// mapped with them.
  ///
  /// - Parameters:
  ///   - value: Bytes of the map.
  ///   - environment: The environment of the transaction.
  ///   - transaction: The transaction that found the value. It keeps the map at its address.
  /// - Complexity: As ``release(of:_:)``.
  public mutating func release(
    _ value: UnsafeRawBufferPointer, of environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) {
    guard let base = value.baseAddress, !value.isEmpty else { return }
    if !isMap(bounds, environment, transaction) { bounds = Self.mapBounds(of: environment) }
    let first = UInt(bitPattern: base)
    guard let bounds, bounds.contains(first) else { return }
    // A page fault maps all pages of a folio in the page cache, including those of adjacent values that were released
    // earlier.
    let window = Self.maximumFolioByteCount
    let start = max(first / window * window, bounds.lowerBound)
    let end = min((first + UInt(value.count) + window - 1) / window * window, bounds.upperBound)
    madvise(UnsafeMutableRawPointer(bitPattern: start), Int(end - start), MADV_DONTNEED)
  }

  /// The largest folio of the kernel's page cache, and its alignment.
  private static let maximumFolioByteCount: UInt = 2 << 20

  /// Whether the map is still at the known address. Otherwise memory of another owner could be cleared.
  ///
  /// It must have the known length, and a page of the main table, which contains its own number, must be at the right
  /// offset.
  private func isMap(
    _ bounds: Range<UInt>?, _ environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) -> Bool {
    guard let bounds, bounds.count == environment.information.mapByteCount else { return false }
    do throws(LMDBError) {
      let mainTable: UInt32 = 1
      let cursor = try openCursor(transaction.handle.pointer, mainTable)
      defer { closeCursor(cursor) }
      guard let key = try moveCursor(cursor, .first)?.key.baseAddress else { return false }
      let pageByteCount = UInt(sysconf(CInt(_SC_PAGESIZE)))
      let address = UInt(bitPattern: key) / pageByteCount * pageByteCount
      guard bounds.contains(address), let page = UnsafeRawPointer(bitPattern: address) else { return false }
      return page.load(as: UInt64.self) == UInt64((address - bounds.lowerBound) / pageByteCount)
    } catch {
      // The caller's own reads will report the error.
      return false
    }
  }

  private static func mapBounds(of environment: LMDBEnvironment) -> Range<UInt>? {
    var status = stat()
    // Without a descriptor, the bounds stay unknown and nothing is released, which does no harm.
    guard let descriptor = try? environment.dataDescriptor(), fstat(descriptor, &status) == 0,
      let file = fopen("/proc/self/maps", "re")
    else { return nil }
    defer { fclose(file) }
    var line: UnsafeMutablePointer<CChar>?
    var capacity = 0
    defer { free(line) }
    while getline(&line, &capacity, file) > 0, let line {
      // 7f0000000000-7f0000100000 r--s 00000000 fd:01 1234 /path/data.mdb
      let fields = String(cString: line).split(separator: " ", maxSplits: 5, omittingEmptySubsequences: true)
      guard fields.count >= 5, fields[1].hasSuffix("s"), fields[2] == "00000000", fields[4] == "\(status.st_ino)" else {
        continue
      }
      let bounds = fields[0].split(separator: "-").compactMap { UInt($0, radix: 16) }
      if bounds.count == 2, bounds[0] < bounds[1] { return bounds[0]..<bounds[1] }
    }
    return nil
  }
}
