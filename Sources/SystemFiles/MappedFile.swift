internal import Glibc

/// Files of a directory that all its processes map.
package enum MappedFile {
  /// Opens a file and calls `use` with its descriptor and size; nil if there is no regular file at the path.
  package static func open<T>(path: String, _ use: (_ descriptor: CInt, _ byteCount: Int) -> T?) -> T? {
    // A FIFO of this name must not make the process wait.
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
    return use(descriptor, Int(status.st_size))
  }

  /// Creates a file under another name and renames it when `fill` has filled it, so that no process maps an unfinished
  /// one. Returns nil if there is no space, with the reason in `errno`.
  package static func create<T>(path: String, byteCount: Int, fill: (_ descriptor: CInt) -> T?) -> T? {
    let temporary = temporaryPath(of: path)
    unlink(temporary)
    let descriptor = FileDescriptor.open(
      temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    // A mapped page that finds no space on a full disk would raise a signal.
    errno = MappedFileBlocks.allocateEmptyFile(descriptor, byteCount: byteCount)
    guard errno == 0, let filled = fill(descriptor), rename(temporary, path) == 0 else {
      let code = errno
      unlink(temporary)
      errno = code
      return nil
    }
    return filled
  }

  /// The other name of a file that is being created.
  package static func temporaryPath(of path: String) -> String { path + ".new" }

  /// Gives a file blocks of its own, so that a write to its mapping needs no space on a full disk.
  ///
  /// Call this while no process has the file mapped.
  ///
  /// - Parameter maximumByteCount: A larger file is not written again.
  /// - Returns: Whether another file has replaced it; nil if that failed, with the reason in `errno`.
  package static func takeOwnBlocks(path: String, maximumByteCount: Int = .max) -> Bool? {
    open(path: path) { (descriptor, byteCount) -> Bool?? in
      switch MappedFileBlocks.state(of: descriptor, byteCount: byteCount) {
      case .own: return false
      case .uncertain where byteCount > maximumByteCount: return false
      case .shared where byteCount > maximumByteCount, .copied where byteCount > maximumByteCount:
        errno = EFBIG
        return .some(nil)
      case .missing, .shared, .uncertain:
        errno = MappedFileBlocks.takeOwn(descriptor, byteCount: byteCount)
        return .some(errno == 0 ? false : nil)
      case .copied:
        let copied: Void? = create(path: path, byteCount: byteCount) { copy in
          MappedFileBlocks.copy(byteCount, from: descriptor, to: copy) && fsync(copy) == 0 ? () : nil
        }
        return .some(copied.map { true })
      }
    } ?? false
  }

  /// Maps the beginning of an open file; nil on failure, with the reason in `errno`.
  ///
  /// A file that is open for reading only, as on a read-only file system, is mapped privately: this process does not
  /// share its changes.
  package static func map(_ descriptor: CInt, byteCount: Int) -> UnsafeMutableRawPointer? {
    var memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    if memory == MAP_FAILED, errno == EACCES {
      memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0)
    }
    return memory == MAP_FAILED ? nil : memory
  }
}
