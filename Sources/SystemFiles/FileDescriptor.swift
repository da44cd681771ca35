internal import Glibc

/// Opens files with descriptors above 2, so that printed text is never written into a file with descriptor 1.
///
/// All files of a store and an environment are opened this way. liblmdb opens its files itself, so descriptors 0 to 2
/// are reserved before. The reserving descriptors are never closed, because by then another thread could have replaced
/// them.
package enum FileDescriptor {
  /// Calls `open`, and returns a descriptor above 2.
  ///
  /// An existing file on a read-only file system is opened for reading, also with `O_RDWR`.
  /// - Returns: The descriptor, or -1 with the reason in `errno`.
  package static func open(_ path: String, _ flags: CInt, mode: UInt32 = 0) -> CInt {
    reserveStandardDescriptors()
    var descriptor = Glibc.open(path, flags, mode)
    if descriptor < 0, errno == EROFS, flags & O_CREAT == 0 {
      descriptor = Glibc.open(path, flags & ~O_ACCMODE | O_RDONLY)
    }
    guard (0...2).contains(descriptor) else { return descriptor }
    // Another thread closed a standard descriptor in between, or there is no /dev/null.
    let moved = fcntl(descriptor, flags & O_CLOEXEC != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 3)
    let code = errno
    close(descriptor)
    errno = code
    return moved
  }

  /// Opens `/dev/null` for each closed descriptor from 0 to 2.
  ///
  /// It is opened read-only and closed on exec, so printing still fails as with a closed descriptor. Costs three system
  /// calls.
  package static func reserveStandardDescriptors() {
    for descriptor in CInt(0)...2 where fcntl(descriptor, F_GETFD) == -1 {
      let taken = Glibc.open("/dev/null", O_RDONLY | O_CLOEXEC)
      // Another thread took the descriptor first.
      if taken > 2 { close(taken) }
    }
  }
}
