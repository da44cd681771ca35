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

  /// Returns the offset of a value in the data file; nil if it is not in the map.
  func offset(of value: UnsafeRawBufferPointer) -> Int? {
    guard let base = value.baseAddress, base >= start, base + value.count <= start + byteCount else { return nil }
    return base - start
  }

  /// Removes the aligned blocks that contain some bytes from the resident memory.
  ///
  /// - Parameter blockByteCount: A power of two, of at least a page.
  func release(_ places: some Sequence<UnsafeRawBufferPointer>, inBlocksOf blockByteCount: Int) {
    let mask = UInt(blockByteCount - 1)
    var run: Range<UInt> = 0..<0
    for place in places {
      let start = UInt(bitPattern: place.baseAddress)
      let blocks = start & ~mask..<(start + UInt(place.count) + mask) & ~mask
      if (run.lowerBound...run.upperBound).contains(blocks.lowerBound) {
        run = run.lowerBound..<max(run.upperBound, blocks.upperBound)
      } else {
        // For a shared mapping of a file this loses no data.
        advise(run, MADV_DONTNEED)
        run = blocks
      }
    }
    advise(run, MADV_DONTNEED)
  }

  /// The kernel maps up to as many aligned bytes with a page that is read.
  static let mappedAtOnceByteCount = 64 << 10

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

  /// Removes the pages of large values from this process's resident memory. They stay in the page cache.
  ///
  /// The kernel maps pages near a page that is read. So transactions that write large values map many of their pages.
  ///
  /// - Parameters:
  ///   - values: Values in the map, each with pages of its own.
  ///   - transaction: The transaction that found them.
  public func releaseResidentPages(
    of values: [UnsafeRawBufferPointer], in transaction: borrowing ReadTransaction
  ) {
    guard let pages = MappedPages(of: self, transaction) else { return }
    pages.release(values, inBlocksOf: pageByteCount)
  }

  /// Removes the pages near the keys of large values from this process's resident memory, except near the last key,
  /// whose page has more keys. They stay in the page cache.
  ///
  /// The kernel maps pages near a page that is read. So a walk through the keys of large values maps many pages.
  ///
  /// - Parameters:
  ///   - keys: Keys in the map, in their order.
  ///   - transaction: The transaction that found them.
  public func releaseResidentPages(
    near keys: [UnsafeRawBufferPointer], in transaction: borrowing ReadTransaction
  ) {
    func block(_ key: UnsafeRawBufferPointer) -> Int {
      Int(bitPattern: key.baseAddress) / MappedPages.mappedAtOnceByteCount
    }
    guard let last = keys.last.map(block), keys.contains(where: { block($0) != last }),
      let pages = MappedPages(of: self, transaction)
    else { return }
    pages.release(keys.filter { block($0) != last }, inBlocksOf: MappedPages.mappedAtOnceByteCount)
  }

  /// Copies large values by reading the data file, so that their pages are not mapped into this process.
  ///
  /// A value in the map costs a page fault for each of its pages, and makes them resident memory of the process.
  ///
  /// - Parameters:
  ///   - values: Values in the map, in the order of the copy.
  ///   - destination: Memory for all of them.
  ///   - transaction: The transaction that found the values.
  /// - Throws: ``LMDBError`` if the file cannot be read. `pread`.
  public func copyFromFile(
    _ values: [UnsafeRawBufferPointer], to destination: UnsafeMutableRawPointer,
    in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    let pages = MappedPages(of: self, transaction)
    var position = destination
    for value in values {
      if let offset = pages?.offset(of: value) {
        try read(value.count, at: offset, to: position)
      } else if let start = value.baseAddress {
        position.copyMemory(from: start, byteCount: value.count)
      }
      position += value.count
    }
  }

  private func read(_ byteCount: Int, at offset: Int, to destination: UnsafeMutableRawPointer) throws(LMDBError) {
    var done = 0
    while done < byteCount {
      let count = pread(dataFile.number, destination + done, byteCount - done, off_t(offset + done))
      if count < 0, errno == EINTR { continue }
      // The file is as long as the map.
      guard count > 0 else { throw count < 0 ? .system("pread") : LMDBError(code: .corrupted, function: "pread") }
      done += count
    }
  }
}
