internal import Glibc

/// Locks on bytes of an open file, which end when the file is closed, also by the end of the process.
///
/// They belong to the open file, not to the process as POSIX locks do, so closing another descriptor of the file does
/// not release them. They are independent of `flock`.
extension LockDescriptor {
  /// `F_OFD_GETLK` and `F_OFD_SETLK`, which glibc declares only with `_GNU_SOURCE`.
  private static let getLock: CInt = 36
  private static let setLock: CInt = 37

  /// Locks bytes against other open files, without waiting. Returns false if the lock could not be set.
  package func lockBytes(_ range: Range<Int>) -> Bool { set(F_WRLCK, range) }

  /// Locks bytes together with other open files that share them. Returns false if the lock could not be set.
  package func shareBytes(_ range: Range<Int>) -> Bool { set(F_RDLCK, range) }

  /// Releases the lock on bytes.
  package func unlockBytes(_ range: Range<Int>) { _ = set(F_UNLCK, range) }

  /// Whether another open file has locked one of the bytes; true also if that cannot be found out.
  ///
  /// Locks of this object do not count.
  package func mayBeLockedByOthers(_ range: Range<Int>) -> Bool { areLockedByOthers(range) ?? true }

  /// Whether another open file, or another process with a lock of POSIX, has locked or shares one of the bytes; nil if
  /// that cannot be found out.
  package func areLockedByOthers(_ range: Range<Int>) -> Bool? {
    var lock = Self.lock(F_WRLCK, range)
    guard fcntl(number, Self.getLock, &lock) == 0 else { return nil }
    return lock.l_type != Int16(F_UNLCK)
  }

  private func set(_ kind: CInt, _ range: Range<Int>) -> Bool {
    var lock = Self.lock(kind, range)
    return fcntl(number, Self.setLock, &lock) == 0
  }

  private static func lock(_ kind: CInt, _ range: Range<Int>) -> flock {
    var lock = flock()
    lock.l_type = Int16(kind)
    lock.l_whence = Int16(SEEK_SET)
    lock.l_start = off_t(range.lowerBound)
    lock.l_len = off_t(range.count)
    return lock
  }
}
