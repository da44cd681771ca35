import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The index file as this process has mapped it, for lookups on any thread.
///
/// All processes share the number of the file in use, or 0 if there is none. A process that has mapped another file
/// maps the present one at its next lookup.
///
/// `@unchecked Sendable`: `pointer` points to an index that `indexes` keeps for as long as this object lives.
final class IndexMapping: @unchecked Sendable {
  private let path: String
  private let owner: UInt64
  /// The number of the file in use; 0 if there is none.
  private let numberInUse: SharedWord
  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let indexes = Mutex(Mapped())

  private struct Mapped {
    /// Every index that was mapped, because a lookup may still use an older one. Retired ones take no memory.
    var all: [RecordIndex] = []
    /// The inode of the last index; 0 if it is in private memory.
    var inode: UInt64 = 0
    /// The numbers of indexes that were retired, and that are to be retired next.
    var retiredCount = 0
    var olderCount = 0
  }

  /// Maps nothing yet.
  ///
  /// - Parameter owner: The identity of the data file, which the index must have.
  init(path: String, owner: UInt64, numberInUse: SharedWord) {
    self.path = path
    self.owner = owner
    self.numberInUse = numberInUse
  }

  /// Whether an index is in use, although this process may not have mapped it.
  var isAnyInUse: Bool { numberInUse.value != 0 }

  /// The index that this process has mapped last. Another process may use another file.
  var loaded: RecordIndex? {
    pointer.load(ordering: .acquiring).map { Unmanaged<RecordIndex>.fromOpaque($0)._withUnsafeGuaranteedRef { $0 } }
  }

  /// The index in use; nil if there is none, or if this process cannot map it.
  @inline(__always)
  var current: RecordIndex? { unretained.map { $0._withUnsafeGuaranteedRef { $0 } } }

  /// The index like ``current``, without counting a reference, for lookups. An index lives as long as this object.
  ///
  /// Get it within the read transaction. It then has all changes of the snapshot.
  @inline(__always)
  var unretained: Unmanaged<RecordIndex>? {
    guard let index = pointer.load(ordering: .acquiring).map({ Unmanaged<RecordIndex>.fromOpaque($0) }),
      index._withUnsafeGuaranteedRef({ isInUse($0) })
    else { return followed }
    return index
  }

  private var followed: Unmanaged<RecordIndex>? {
    guard isAnyInUse else { return nil }
    do throws(LMDBError) {
      _ = try follow()
    } catch {
      // A limit of this process prevents it. A lookup misses.
      return nil
    }
    // The holder of the write lock maps a new file before it is in use. Until then, the older one is.
    return indexes.withLock { $0.all.last { isInUse($0) } }.map { .passUnretained($0) }
  }

  @inline(__always)
  private func isInUse(_ index: RecordIndex) -> Bool {
    index[IndexLayout.Word.fileNumber] == numberInUse.value
  }

  /// Tells all processes which file is in use; nil for none. Needs the write lock.
  func setInUse(_ index: RecordIndex?) {
    let number = index?[IndexLayout.Word.fileNumber] ?? 0
    if numberInUse.value != number { numberInUse.value = number }
  }

  /// Maps a new index, unless a thread has already mapped its file.
  func use(_ index: RecordIndex, inode: UInt64) {
    indexes.withLock { if inode != $0.inode { use(index, inode: inode, &$0) } }
  }

  /// Uses an index in private memory until another file is in use.
  func use(inPrivateMemory index: RecordIndex) {
    index[IndexLayout.Word.fileNumber] = numberInUse.value
    indexes.withLock { use(index, inode: 0, &$0) }
  }

  private func use(_ index: RecordIndex, inode: UInt64, _ mapped: inout Mapped) {
    mapped.all.append(index)
    mapped.inode = inode
    pointer.store(UnsafeRawPointer(Unmanaged.passUnretained(index).toOpaque()), ordering: .releasing)
  }

  /// Maps the file at the path, unless it is mapped. Returns false if there is none, or if it is not of this store.
  ///
  /// - Throws: ``LMDBError`` if a limit of this process prevents it. Other processes may use the file.
  func follow() throws(LMDBError) -> Bool {
    try indexes.withLock { mapped in
      Result { () throws(LMDBError) in try follow(&mapped) }
    }.get()
  }

  private func follow(_ mapped: inout Mapped) throws(LMDBError) -> Bool {
    var status = stat()
    if stat(path, &status) == 0, UInt64(status.st_ino) == mapped.inode { return true }
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
    guard descriptor >= 0 else {
      if errno == ENOENT || errno == ELOOP { return false }
      throw LMDBError(code: .init(rawValue: errno), function: "open")
    }
    defer { close(descriptor) }
    var header = [UInt64](repeating: 0, count: 8)
    guard fstat(descriptor, &status) == 0, pread(descriptor, &header, 64, 0) == 64,
      header[IndexLayout.Word.magic] == IndexLayout.magic, header[IndexLayout.Word.owner] == owner,
      header[IndexLayout.Word.inode] == UInt64(status.st_ino),
      header[IndexLayout.Word.device] == UInt64(status.st_dev),
      case let cellCount = header[IndexLayout.Word.cellCount],
      cellCount >= IndexLayout.minimumCellCount, cellCount <= IndexLayout.maximumCellCount,
      Int(status.st_size) == IndexLayout.byteCount(cellCount: Int(cellCount))
    else { return false }
    guard let index = RecordIndex(descriptor: descriptor, cellCount: Int(cellCount)) else {
      throw LMDBError(code: .init(rawValue: errno), function: "mmap")
    }
    use(index, inode: UInt64(status.st_ino), &mapped)
    return true
  }

  /// Unmaps files that were replaced before the last call, which releases their disk space.
  ///
  /// A lookup that has used such a file all the time finds no further record in it. It then sees that the file is not
  /// in use, and looks again.
  func retireOlder() {
    indexes.withLock { mapped in
      for index in mapped.all[mapped.retiredCount..<mapped.olderCount] { index.retire() }
      mapped.retiredCount = mapped.olderCount
      mapped.olderCount = max(mapped.all.count - 1, 0)
    }
  }
}
