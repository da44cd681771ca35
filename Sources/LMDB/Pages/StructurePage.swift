/// An error in the structure of a data file, as a phrase for a sentence about the file.
struct BrokenStructure: Error {
  let reason: String

  init(_ reason: String) { self.reason = reason }
}

/// A page or its beginning. LMDB 0.9 on 64-bit machines, with integers in the machine's byte order:
///
///     offset  bytes  content
///          0      8  page number
///         10      2  flags: branch 1, leaf 2, overflow 4
///         12      2  end of the node offsets; an overflow page has a page count of 4 bytes here
///         14      2  beginning of the nodes
///         16         offsets of the nodes, 2 bytes each
///
/// A node has 4 bytes of size or page number, 2 bytes of flags, 2 bytes of key length, the key, and the value. In a
/// branch, the flags are the high bytes of the page number.
struct StructurePage {
  var bytes: [UInt8]

  func load<T: BitwiseCopyable>(_ offset: Int, as type: T.Type = T.self) throws(BrokenStructure) -> T {
    guard offset >= 0, offset + MemoryLayout<T>.size <= bytes.count else {
      throw BrokenStructure("a node reaches out of its page")
    }
    return bytes.span.bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: T.self)
  }
}

/// The properties of a tree in the file: 48 bytes in a meta page, or in the value of a named table.
struct TreeRecord {
  static let byteCount = 48
  let depth: Int
  let branchCount, leafCount, overflowCount, entryCount, root: UInt64

  init(_ page: StructurePage, at offset: Int) throws(BrokenStructure) {
    depth = Int(try page.load(offset + 6, as: UInt16.self))
    branchCount = try page.load(offset + 8)
    leafCount = try page.load(offset + 16)
    overflowCount = try page.load(offset + 24)
    entryCount = try page.load(offset + 32)
    root = try page.load(offset + 40)
  }
}
