internal import Glibc

/// Opens files so that none gets a number from 0 to 2: what a program prints would be written into a file that has number 1.
///
/// All files of a store and of an environment are opened in this way. liblmdb opens its files itself, so the three numbers are taken
/// before. The descriptors that take them stay: by the time to close them again, another thread may have put its own files there.
package enum FileDescriptor {
  /// `open`, with a number above 2.
  /// - Returns: The descriptor, or -1; `errno` tells why.
  package static func open(_ path: String, _ flags: CInt, mode: UInt32 = 0) -> CInt {
    occupyStandardDescriptors()
    let descriptor = Glibc.open(path, flags, mode)
    guard (0...2).contains(descriptor) else { return descriptor }
    // Another thread has closed a standard descriptor meanwhile, or there is no /dev/null.
    let moved = fcntl(descriptor, flags & O_CLOEXEC != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 3)
    let code = errno
    close(descriptor)
    errno = code
    return moved
  }

  /// Opens `/dev/null` on each of the descriptors 0 to 2 that is closed.
  ///
  /// It is opened for reading only, and a program that this one executes does not get it: printing fails as it does with a closed
  /// descriptor. Costs three system calls.
  package static func occupyStandardDescriptors() {
    for descriptor in CInt(0)...2 where fcntl(descriptor, F_GETFD) == -1 {
      let taken = Glibc.open("/dev/null", O_RDONLY | O_CLOEXEC)
      // Another thread was faster.
      if taken > 2 { close(taken) }
    }
  }
}
