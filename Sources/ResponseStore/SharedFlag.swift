import Glibc
import Synchronization

/// Two bytes, and a number, that all processes with the directory open see change at once: it lies in a page of a file that each has
/// mapped. Setting them takes no room on the disk, as the page was written when the file was made.
///
/// `@unchecked Sendable`: the pointer is constant, and every access is atomic.
final class SharedFlag: @unchecked Sendable {
  private let pointer: UnsafeMutableRawPointer
  private let device: UInt
  private let inode: UInt
  private static let byteCount = Int(getpagesize())

  /// Maps the beginning of an open file; nil if there is no room for it, with the reason in `errno`.
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

  /// Whether it lies in the file of this name, and not in one that was there before.
  func isMapped(from path: String) -> Bool {
    var status = stat()
    return stat(path, &status) == 0 && UInt(status.st_dev) == device && UInt(status.st_ino) == inode
  }

  private var byte: UnsafeMutablePointer<Atomic<UInt8>> {
    pointer.assumingMemoryBound(to: Atomic<UInt8>.self)
  }

  private var users: UnsafeMutablePointer<Atomic<UInt32>> {
    (pointer + 64).assumingMemoryBound(to: Atomic<UInt32>.self)
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

  /// How many processes have opened the data and not closed it; some of them may be no more.
  var userCount: UInt32 {
    get { users.pointee.load(ordering: .relaxed) }
    set { users.pointee.store(newValue, ordering: .relaxed) }
  }

  func addUser() { users.pointee.wrappingAdd(1, ordering: .sequentiallyConsistent) }
  func removeUser() { users.pointee.wrappingSubtract(1, ordering: .sequentiallyConsistent) }

  var isSet: Bool { byte.pointee.load(ordering: .relaxed) != 0 }

  func set(_ isSet: Bool) {
    byte.pointee.store(isSet ? 1 : 0, ordering: .sequentiallyConsistent)
  }
}
