import Glibc
import LMDB

/// Files of a directory that all its processes map.
enum MappedFile {
  /// Opens a file and calls `use` with its descriptor and size; nil if there is no regular file at the path.
  static func open<T>(path: String, _ use: (_ descriptor: CInt, _ byteCount: Int) -> T?) -> T? {
    // A FIFO of this name must not make the process wait.
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
    return use(descriptor, Int(status.st_size))
  }

  /// Creates a file under another name and renames it when `fill` has filled it, so that no process maps an unfinished
  /// one. Returns nil if there is no space.
  static func create<T>(path: String, byteCount: Int, fill: (_ descriptor: CInt) -> T?) -> T? {
    let temporary = path + ".new"
    unlink(temporary)
    let descriptor = FileDescriptor.open(
      temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    // Allocated: a mapped page that finds no space on a full disk would raise a signal.
    guard posix_fallocate(descriptor, 0, off_t(byteCount)) == 0, let filled = fill(descriptor),
      rename(temporary, path) == 0
    else {
      unlink(temporary)
      return nil
    }
    return filled
  }

  /// Maps the beginning of an open file.
  static func map(_ descriptor: CInt, byteCount: Int) -> UnsafeMutableRawPointer? {
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    return memory == MAP_FAILED ? nil : memory
  }
}
