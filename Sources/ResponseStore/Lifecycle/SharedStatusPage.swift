import Glibc
import Synchronization

/// Flags and numbers that all processes share: a page of a file that each process has mapped.
///
/// Changing them takes no disk space, because the page was written when the file was created.
///
/// `@unchecked Sendable`: the pointer is constant, and every access is atomic.
final class SharedStatusPage: @unchecked Sendable {
  private let pointer: UnsafeMutableRawPointer
  private let device: UInt
  private let inode: UInt
  private static let byteCount = Int(getpagesize())

  /// Maps the beginning of an open file; nil if the disk is full, with the reason in `errno`.
  init?(descriptor: CInt) {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    if status.st_size < off_t(Self.byteCount) {
      // Write the page instead of only extending the file: on a full disk, accessing a page without a block raises a
      // signal.
      let zeros = [UInt8](repeating: 0, count: Self.byteCount)
      let written = pwrite(descriptor, zeros, zeros.count, 0)
      guard written == zeros.count else {
        if written >= 0 { errno = ENOSPC }
        return nil
      }
    }
    let mapped = mmap(nil, Self.byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    guard let mapped, mapped != MAP_FAILED else { return nil }
    pointer = mapped
    device = UInt(status.st_dev)
    inode = UInt(status.st_ino)
  }

  deinit {
    munmap(pointer, Self.byteCount)
  }

  /// Whether the page belongs to the file at this path, and not to an earlier file at it.
  func isMapped(from path: String) -> Bool {
    var status = stat()
    return stat(path, &status) == 0 && UInt(status.st_dev) == device && UInt(status.st_ino) == inode
  }

  private var failedFlag: UnsafeMutablePointer<Atomic<UInt8>> {
    pointer.assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  private func word(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (pointer + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// The inode of the PID namespace of the processes that have the directory open; 0 if unknown.
  var processNamespace: UInt64 {
    get { word(192).pointee.load(ordering: .relaxed) }
    set { word(192).pointee.store(newValue, ordering: .relaxed) }
  }

  /// The boot of the machine in which the directory was last opened; zeros if unknown.
  var boot: (UInt64, UInt64) {
    get { (word(200).pointee.load(ordering: .relaxed), word(208).pointee.load(ordering: .relaxed)) }
    set {
      word(200).pointee.store(newValue.0, ordering: .relaxed)
      word(208).pointee.store(newValue.1, ordering: .relaxed)
    }
  }

  /// The reason for a check of the data's structure that has not finished; 0 if there is none.
  var checkReason: UInt64 {
    get { word(216).pointee.load(ordering: .relaxed) }
    set { word(216).pointee.store(newValue, ordering: .relaxed) }
  }

  /// The process that checks the structure, or 0.
  var checker: UInt64 { word(224).pointee.load(ordering: .relaxed) }

  /// Replaces ``checker``. Returns false, and changes nothing, if it is not the expected one.
  func replaceChecker(_ expected: UInt64, with new: UInt64) -> Bool {
    word(224).pointee.compareExchange(expected: expected, desired: new, ordering: .relaxed).exchanged
  }

  private var suspectFlag: UnsafeMutablePointer<Atomic<UInt8>> {
    (pointer + 128).assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  /// Whether corruption was found in the data.
  var isSuspect: Bool {
    suspectFlag.pointee.load(ordering: .relaxed) != 0
  }

  /// Sets ``isSuspect``. Returns whether it was not set before.
  func setSuspect() -> Bool { suspectFlag.pointee.exchange(1, ordering: .relaxed) == 0 }
  func clearSuspect() { suspectFlag.pointee.store(0, ordering: .relaxed) }

  /// Whether the data is marked as failed.
  var isSet: Bool { failedFlag.pointee.load(ordering: .relaxed) != 0 }

  func set(_ isSet: Bool) {
    failedFlag.pointee.store(isSet ? 1 : 0, ordering: .sequentiallyConsistent)
  }
}
