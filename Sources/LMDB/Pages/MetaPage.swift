/// The beginning of a meta page, one of the first two pages of a data file, as LMDB 0.9 writes it on 64-bit machines.
///
///     offset  bytes  content
///         10      2  flags of the page: 8 means a meta page
///         16      4  magic number
///         20      4  version of the format
///         40      4  size of a page in bytes
///         80      8  root page of the free list, or all ones
///        128      8  root page of the main table, or all ones
///        136      8  number of the last page in use
///        144      8  number of the commit that wrote it
struct MetaPage {
  static let byteCount = 152
  /// The end of the magic number.
  static let magicEnd = 20

  let flags: UInt16
  let magic: UInt32
  let version: UInt32
  let pageByteCount: UInt32
  let freeListRoot: UInt64
  let mainRoot: UInt64
  let lastPage: UInt64
  let transactionID: UInt64

  /// Decodes 152 bytes.
  init(_ bytes: [UInt8]) {
    func load<T: BitwiseCopyable>(_ offset: Int) -> T {
      bytes.span.bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: T.self)
    }
    precondition(bytes.count >= Self.byteCount)
    flags = load(10)
    magic = load(16)
    version = load(20)
    pageByteCount = load(40)
    freeListRoot = load(80)
    mainRoot = load(128)
    lastPage = load(136)
    transactionID = load(144)
  }

  var isMeta: Bool { flags & 8 != 0 && magic == 0xBEEF_C0DE }

  /// Returns the error of the meta page; nil if there is none.
  func condition(number: Int, pageByteCount page: Int, mapByteCount: Int) -> DataFile.Condition? {
    guard isMeta else {
      // The second page is looked for at this machine's page size.
      return number == 0 ? .notLMDB : .implausible("its second page is not a meta page")
    }
    guard version == 1 else { return .otherVersion(version) }
    guard pageByteCount == page else { return .otherPageSize(pageByteCount) }
    guard lastPage >= 1, lastPage < UInt64(Int.max / page) else {
      return .implausible("its last page cannot be number \(lastPage)")
    }
    guard (Int(lastPage) + 1) * page <= mapByteCount else {
      return .largerThanMap(byteCount: (Int(lastPage) + 1) * page, mapByteCount: mapByteCount)
    }
    guard transactionID == 0 || transactionID % 2 == UInt64(number) else {
      return .implausible("meta page \(number) claims to be of commit \(transactionID)")
    }
    return nil
  }

  /// Whether the roots of the trees are within the pages in use.
  ///
  /// Only those of the newer meta page need to be: LMDB leaves new roots and the old last page in the other one when it
  /// cannot write that page.
  var hasPlausibleRoots: Bool {
    // A range would trap for a file with only two pages.
    [freeListRoot, mainRoot].allSatisfy { $0 == .max || ($0 >= 2 && $0 <= lastPage) }
  }
}
