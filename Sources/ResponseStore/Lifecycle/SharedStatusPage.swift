import Glibc
import Synchronization

/// Two flags and a few numbers that all processes see change at once: a page of a file that each has mapped. Setting
/// them takes no disk space, as the page was written when the file was created.
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
      // Written, not only extended: a page without a block would be a signal when the disk is full.
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

  /// Whether the page is in the file of this name, and not in an earlier one.
  func isMapped(from path: String) -> Bool {
    var status = stat()
    return stat(path, &status) == 0 && UInt(status.st_dev) == device && UInt(status.st_ino) == inode
  }

  private var byte: UnsafeMutablePointer<Atomic<UInt8>> {
    pointer.assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  private func word(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (pointer + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// The inode of the PID namespace of the processes that have the directory open; 0 if it is unknown.
  var processNamespace: UInt64 {
    get { word(192).pointee.load(ordering: .relaxed) }
    set { word(192).pointee.store(newValue, ordering: .relaxed) }
  }

  /// The boot of the machine in which the directory was last opened; zeros if it is not known.
  var boot: (UInt64, UInt64) {
    get { (word(200).pointee.load(ordering: .relaxed), word(208).pointee.load(ordering: .relaxed)) }
    set {
      word(200).pointee.store(newValue.0, ordering: .relaxed)
      word(208).pointee.store(newValue.1, ordering: .relaxed)
    }
  }

  /// Why the structure of the data is to be checked, or is being checked; 0 when there is nothing to check.
  var checkReason: UInt64 {
    get { word(216).pointee.load(ordering: .relaxed) }
    set { word(216).pointee.store(newValue, ordering: .relaxed) }
  }

  /// The process that checks it, or 0.
  var checker: UInt64 { word(224).pointee.load(ordering: .relaxed) }

  /// True if it was the one that is expected.
  func replaceChecker(_ expected: UInt64, with new: UInt64) -> Bool {
    word(224).pointee.compareExchange(expected: expected, desired: new, ordering: .relaxed).exchanged
  }

  private var suspicion: UnsafeMutablePointer<Atomic<UInt8>> {
    (pointer + 128).assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  /// Whether something damaged was found in the data.
  var isSuspect: Bool {
    suspicion.pointee.load(ordering: .relaxed) != 0
  }

  /// True if it was not set.
  func setSuspect() -> Bool { suspicion.pointee.exchange(1, ordering: .relaxed) == 0 }
  func clearSuspect() { suspicion.pointee.store(0, ordering: .relaxed) }

  var isSet: Bool { byte.pointee.load(ordering: .relaxed) != 0 }

  func set(_ isSet: Bool) {
    byte.pointee.store(isSet ? 1 : 0, ordering: .sequentiallyConsistent)
  }
}
