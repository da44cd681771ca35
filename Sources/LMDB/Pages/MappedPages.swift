internal import Glibc

/// The pages of the map, as a read transaction sees them. It keeps the map in place.
///
/// LMDB 0.9 on 64-bit machines, with integers in the machine's byte order:
///
///     offset  bytes  content of a page
///          0      8  page number
///         10      2  flags; a branch has 1
///         12      2  end of the node offsets
///         16         offsets of the nodes, 2 bytes each
///
/// A node of a branch has 6 bytes of page number, 2 bytes of key length, and the key.
struct MappedPages {
  private let start: UnsafeRawPointer
  let byteCount: Int
  private let pageByteCount: Int
  private let lastPage: Int

  private static let mainTable: UInt32 = 1

  /// Finds the map: a page contains its own number. Nil if that fails; then the caller's own reads report the error.
  init?(of environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction) {
    let information = environment.information
    (pageByteCount, byteCount, lastPage) =
      (environment.pageByteCount, information.mapByteCount, information.lastPageNumber)
    do throws(LMDBError) {
      let cursor = try openCursor(transaction.handle.pointer, Self.mainTable)
      defer { closeCursor(cursor) }
      guard let key = try moveCursor(cursor, .first)?.key.baseAddress else { return nil }
      let page = UnsafeRawPointer(bitPattern: UInt(bitPattern: key) & ~UInt(pageByteCount - 1))
      guard let page, case let number = page.load(as: Int.self), (2...max(lastPage, 2)).contains(number) else {
        return nil
      }
      start = page - number * pageByteCount
    } catch {
      return nil
    }
  }

  /// Advises the kernel about the part of a range that is in the map.
  func advise(_ range: Range<UInt>, _ advice: CInt) {
    let (first, end) = (
      max(range.lowerBound, UInt(bitPattern: start)), min(range.upperBound, UInt(bitPattern: start) + UInt(byteCount))
    )
    guard first < end, let memory = UnsafeMutableRawPointer(bitPattern: first) else { return }
    madvise(memory, Int(end - first), advice)
  }

  /// The position of a tree: its root page, and its number of levels; nil for an empty or missing table.
  func tree(ofTable name: [UInt8], _ transaction: borrowing ReadTransaction) -> (root: Int, depth: Int)? {
    do throws(LMDBError) {
      let value = try BytesCodec.withEncoded(name) { (name) throws(LMDBError) in
        try findValue(transaction.handle.pointer, Self.mainTable, name)
      }
      guard let value, value.count == 48 else { return nil }
      let (depth, root) = (
        Int(value.loadUnaligned(fromByteOffset: 6, as: UInt16.self)),
        value.loadUnaligned(fromByteOffset: 40, as: Int.self)
      )
      return root >= 0 && depth <= 32 ? (root, depth) : nil
    } catch {
      return nil
    }
  }

  /// The keys of a branch and the pages that they lead to; nil if the page is none.
  func branch(_ number: Int) -> [(key: [UInt8], page: Int)]? {
    guard (2...max(lastPage, 2)).contains(number) else { return nil }
    let page = UnsafeRawBufferPointer(start: start + number * pageByteCount, count: pageByteCount)
    func load(_ offset: Int) -> Int { Int(page.loadUnaligned(fromByteOffset: offset, as: UInt16.self)) }
    let end = load(12)
    guard load(10) == 1, end <= pageByteCount else { return nil }
    var nodes: [(key: [UInt8], page: Int)] = []
    for position in stride(from: 16, to: end, by: 2) {
      let node = load(position)
      guard node + 8 <= pageByteCount, node + 8 + load(node + 6) <= pageByteCount else { return nil }
      let child = load(node) | load(node + 2) << 16 | load(node + 4) << 32
      nodes.append((Array(page[node + 8..<node + 8 + load(node + 6)]), child))
    }
    return nodes
  }
}

extension LMDBEnvironment {
  /// Removes the pages of the map from this process's resident memory. They stay in the page cache.
  ///
  /// Without this, a process that scans the whole file would have all of it as resident memory. Do not use it in a
  /// process that serves lookups, because each lookup would fault its pages in again. Costs a system call.
  ///
  /// - Parameter transaction: A transaction, which keeps the map in place.
  public func releaseResidentPages(in transaction: borrowing ReadTransaction) {
    guard let pages = MappedPages(of: self, transaction) else { return }
    // For a shared mapping of a file this loses no data.
    pages.advise(0..<UInt.max, MADV_DONTNEED)
  }

  /// Releases the pages of a value like ``releaseResidentPages(in:)``, and the pages next to it that the kernel mapped
  /// with them. Use it for a large value that was just copied.
  ///
  /// - Parameters:
  ///   - value: Bytes of the map.
  ///   - transaction: The transaction that found the value.
  public func releaseResidentPages(of value: UnsafeRawBufferPointer, in transaction: borrowing ReadTransaction) {
    guard let base = value.baseAddress, let pages = MappedPages(of: self, transaction) else { return }
    // A page fault maps all pages of a folio in the page cache, including those of adjacent values that were released
    // earlier. This is the size of the largest folio, and its alignment.
    let window: UInt = 2 << 20
    let first = UInt(bitPattern: base)
    pages.advise(first / window * window..<(first + UInt(value.count) + window - 1) / window * window, MADV_DONTNEED)
  }
}
