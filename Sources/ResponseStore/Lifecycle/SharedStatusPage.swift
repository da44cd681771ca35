import Glibc
import LMDB
import Synchronization
import SystemFiles

/// Flags and numbers that all processes share: a page of a file that each process has mapped.
///
/// Changing them takes no disk space, because the page was written when the file was created.
///
/// `@unchecked Sendable`: the pointer is constant, and every access is atomic.
final class SharedStatusPage: @unchecked Sendable {
  private let pointer: UnsafeMutableRawPointer
  private let file: StoreDirectory.Identity
  private static let byteCount = Int(getpagesize())

  /// The words, by their offsets in the page.
  enum Word: Int {
    /// The inode of the PID namespace of the processes that have the directory open; 0 if unknown.
    case processNamespace = 192
    /// The boot of the machine in which the directory was last opened; zeros if unknown.
    case bootHigh = 200
    case bootLow = 208
    /// The number of crashes in a row; see ``StoreDirectory/countCrash(isInspection:)``.
    case crashCount = 216
    /// 1 after a crash that is not counted yet, and while a process that is alone opens the data.
    case hasCrashed = 224
    /// How often the directory was opened since a process that was alone opened it, including that. Change it with the
    /// open lock.
    case openCount = 232
    /// The number of the index file in use; see ``IndexMapping``. 0 if there is none, and the disk tier is off.
    case indexFile = 240
  }

  /// The offset of the flag of failed data, a byte. It has a cache line of its own.
  private static let failedFlag = 0

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
    file = StoreDirectory.Identity(status)
  }

  deinit {
    munmap(pointer, Self.byteCount)
  }

  /// Whether the page belongs to the file at this path, and not to an earlier file at it.
  func isMapped(from path: String) -> Bool { StoreDirectory.Identity(path: path) == file }

  private var failed: UnsafeMutablePointer<Atomic<UInt8>> {
    (pointer + Self.failedFlag).assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  private func pointer(to word: Word) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (pointer + word.rawValue).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  subscript(word: Word) -> UInt64 {
    get { pointer(to: word).pointee.load(ordering: .relaxed) }
    set { pointer(to: word).pointee.store(newValue, ordering: .relaxed) }
  }

  /// The word ``Word/indexFile``, which the holder of the database's write lock changes.
  var indexFile: SharedWord { SharedWord(pointer(to: .indexFile), in: self) }

  /// Whether the data is marked as failed.
  var hasFailed: Bool {
    get { failed.pointee.load(ordering: .relaxed) != 0 }
    set { failed.pointee.store(newValue ? 1 : 0, ordering: .sequentiallyConsistent) }
  }
}
