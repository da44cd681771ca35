import Glibc

/// The mapping of the index, as in the store, whose own type needs the module LMDB.
enum MappedFile {
  static func map(_ descriptor: CInt, byteCount: Int) -> UnsafeMutableRawPointer? {
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    return memory == MAP_FAILED ? nil : memory
  }
}

enum MappedFileBlocks {
  static func allocateEmptyFile(_ descriptor: CInt, byteCount: Int) -> CInt {
    posix_fallocate(descriptor, 0, off_t(byteCount))
  }
}
