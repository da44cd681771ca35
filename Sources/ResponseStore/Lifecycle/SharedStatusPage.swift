import Glibc
import LMDB
import Synchronization
import SystemFiles

/// Numbers that all processes share: a page of a file that each process has mapped.
///
/// Changing them takes no disk space, because the page was written when the file was created.
///
/// `@unchecked Sendable`: the pointer is constant, and every access is atomic.
final class SharedStatusPage: @unchecked Sendable {
  private let pointer: UnsafeMutableRawPointer
  private static let byteCount = Int(getpagesize())

  /// The words, by their offsets in the page.
  enum Word: Int {
    /// The number of the generation in use; see ``StoreDirectory``. Every lookup reads this word, so it has a cache
    /// line of its own.
    case generation = 0
    /// The inode of the PID namespace of the processes that have the directory open; 0 if unknown.
    case processNamespace = 192
    /// The boot of the machine in which the directory was last opened; zeros if unknown.
    case bootHigh = 200
    case bootLow = 208
    /// The number of crashes in a row; see ``StoreDirectory/countCrash()``.
    case crashCount = 216
    /// 1 after a crash that is not counted yet, and while a process that is alone opens the data.
    case hasCrashed = 224
    /// How often a generation was opened since no other process used it, including that. Change both words with the
    /// open lock.
    case openCount = 232
    /// The generation that ``openCount`` counts.
    case openedGeneration = 240
    /// The version of the storage format that the processes have which use the directory, or used it last; 0 before
    /// version
    /// 7. The word has the same place in every later version.
    case format = 248
    /// The number of the index file in use; see ``IndexMapping``. 0 if there is none, and the disk tier is off. The
    /// holder of the database's write lock changes it. A number of an ended generation, from a process that was
    /// suspended, counts as none until the next write transaction.
    case indexNumber = 256
    /// A generation, plus 1, in which no response with No-Vary-Search was stored; see
    /// ``StoreContext/mayHaveEquivalentURLs``.
    case plainGeneration = 264
    /// A random number of the processes that have the generation open together; see
    /// ``ResponseStore/keySpaceNumber(at:)``.
    case keySpaceSeed = 272
    /// The device and the inode of LMDB's lock file, and the generation that it belongs to.
    case lockFileDevice = 320
    case lockFileInode = 328
    case lockFileGeneration = 336
  }

  /// Reads the format in the page of an open file, without a change; nil if the file is too short.
  static func format(descriptor: CInt) -> UInt64? {
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_size >= off_t(byteCount) else { return nil }
    var format: UInt64 = 0
    return pread(descriptor, &format, 8, off_t(Word.format.rawValue)) == 8 ? format : nil
  }

  /// Maps the beginning of an open file; nil if the disk is full, with the reason in `errno`.
  ///
  /// - Parameter extendsFile: Whether a short file is extended. Otherwise the result is nil for a short file.
  init?(descriptor: CInt, extendsFile: Bool = true) {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    if status.st_size < off_t(Self.byteCount) {
      guard extendsFile else { return nil }
      // On a full disk, a write to a page without a block of its own raises a signal.
      if status.st_size == 0 { _ = MappedFileBlocks.allocateEmptyFile(descriptor, byteCount: Self.byteCount) }
      let zeros = [UInt8](repeating: 0, count: Self.byteCount)
      let written = pwrite(descriptor, zeros, zeros.count, 0)
      guard written == zeros.count else {
        if written >= 0 { errno = ENOSPC }
        return nil
      }
    }
    guard let mapped = MappedFile.map(descriptor, byteCount: Self.byteCount) else { return nil }
    pointer = mapped
  }

  deinit {
    munmap(pointer, Self.byteCount)
  }

  @inline(__always)
  private func pointer(to word: Word) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (pointer + word.rawValue).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  subscript(word: Word) -> UInt64 {
    @inline(__always) get { pointer(to: word).pointee.load(ordering: .relaxed) }
    set { pointer(to: word).pointee.store(newValue, ordering: .relaxed) }
  }

  var indexNumber: SharedWord { SharedWord(pointer(to: .indexNumber), in: self) }

  /// Makes the next generation the one in use, unless this one has ended already.
  func end(generation number: UInt64) {
    _ = pointer(to: .generation).pointee.compareExchange(
      expected: number, desired: number + 1, ordering: .sequentiallyConsistent)
  }
}
