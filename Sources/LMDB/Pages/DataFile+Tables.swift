internal import Glibc
internal import SystemFiles

extension DataFile {
  /// Returns the names of the tables in a data file, read without LMDB and its locks.
  ///
  /// None if the file cannot be read, or has more tables than fit a page. A process may write the file meanwhile, so
  /// the names tell what the file is, and nothing about its state.
  ///
  /// LMDB's main table has them. A page of it:
  ///
  ///     offset  bytes  content
  ///         10      2  flags; a leaf has 2
  ///         12      2  end of the node offsets
  ///         16         offsets of the nodes, 2 bytes each
  ///
  /// A node has 6 bytes that do not matter here, 2 bytes of key length, and the key.
  package static func tableNames(path: String) -> Set<String> {
    // O_NONBLOCK: do not wait for the writer of a pipe at this path.
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard descriptor >= 0 else { return [] }
    defer { close(descriptor) }
    let pageByteCount = Int(getpagesize())
    let metas = (0..<2).map { readMeta($0, descriptor) }.filter { $0.readCount == MetaPage.byteCount && $0.meta.isMeta }
    let newest = metas.map(\.meta).max { $0.transactionID < $1.transactionID }
    guard let root = newest?.mainRoot, root >= 2, root < UInt64(Int.max / pageByteCount) else { return [] }
    var page = [UInt8](repeating: 0, count: pageByteCount)
    guard pread(descriptor, &page, pageByteCount, off_t(Int(root) * pageByteCount)) == pageByteCount else { return [] }
    func load(_ offset: Int) -> Int {
      Int(page.span.bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: UInt16.self))
    }
    let end = load(12)
    guard load(10) & ~0x10 == 2, end <= pageByteCount - 2 else { return [] }
    var names: Set<String> = []
    for position in stride(from: 16, to: end, by: 2) {
      let node = load(position)
      guard node + 8 <= pageByteCount, case let byteCount = load(node + 6), node + 8 + byteCount <= pageByteCount else {
        return []
      }
      names.insert(String(decoding: page[(node + 8)..<(node + 8 + byteCount)], as: UTF8.self))
    }
    return names
  }
}
