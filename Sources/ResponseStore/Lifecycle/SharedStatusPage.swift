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
    /// The reason for a check of the data's structure that has not finished; 0 if there is none.
    case checkReason = 216
    /// The process that checks the structure; 0 if none does.
    case checker = 224
    /// How often the directory was opened since a process that was alone opened it, including that. Change it with the
    /// open lock.
    case openCount = 232
    /// The number of the index file in use; see ``IndexMapping``. 0 if there is none, and the disk tier is off.
    case indexFile = 240
  }

  /// The offsets of the flags, which are bytes. Each has a cache line of its own.
  private static let failedFlag = 0
  private static let suspectFlag = 128

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

  private func flag(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt8>> {
    (pointer + offset).assumingMemoryBound(to: Atomic<UInt8>.self)
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

  /// Replaces ``Word/checker``. Returns false, and changes nothing, if it is not the expected one.
  func replaceChecker(_ expected: UInt64, with new: UInt64) -> Bool {
    pointer(to: .checker).pointee.compareExchange(expected: expected, desired: new, ordering: .relaxed).exchanged
  }

  /// Whether corruption was found in the data.
  var isSuspect: Bool { flag(Self.suspectFlag).pointee.load(ordering: .relaxed) != 0 }

  /// Sets ``isSuspect``. Returns whether it was not set before.
  func setSuspect() -> Bool { flag(Self.suspectFlag).pointee.exchange(1, ordering: .relaxed) == 0 }
  func clearSuspect() { flag(Self.suspectFlag).pointee.store(0, ordering: .relaxed) }

  /// Whether the data is marked as failed.
  var hasFailed: Bool {
    get { flag(Self.failedFlag).pointee.load(ordering: .relaxed) != 0 }
    set { flag(Self.failedFlag).pointee.store(newValue ? 1 : 0, ordering: .sequentiallyConsistent) }
  }
}
