import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The index file as this process has mapped it, for lookups on any thread.
///
/// All processes share the number of the file that write transactions use. It is set before a transaction with another
/// file commits. A process that has mapped another file maps the present one at its next lookup, also if another
/// program has deleted the file that it has mapped.
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
    /// Every index that was mapped, because a lookup may still use an older one. Older ones take no memory.
    var all: [RecordIndex] = []
    /// The inode of the last index; 0 if it was discarded.
    var inode: UInt64 = 0
  }

  /// Maps nothing yet.
  ///
  /// - Parameter owner: The identity of the data file, which the index must have.
  init(path: String, owner: UInt64, numberInUse: SharedWord) {
    self.path = path
    self.owner = owner
    self.numberInUse = numberInUse
  }

  /// The index that this process has mapped last. Another process may use another file.
  var loaded: RecordIndex? {
    pointer.load(ordering: .acquiring).map { Unmanaged<RecordIndex>.fromOpaque($0)._withUnsafeGuaranteedRef { $0 } }
  }

  /// The index in use; nil if there is none, or if this process has not mapped one yet.
  @inline(__always)
  var current: RecordIndex? { unretained.map { $0._withUnsafeGuaranteedRef { $0 } } }

  /// The index like ``current``, without counting a reference, for lookups. An index lives as long as this object.
  ///
  /// Get it within the read transaction. It then has all changes of the snapshot.
  @inline(__always)
  var unretained: Unmanaged<RecordIndex>? {
    guard let index = pointer.load(ordering: .acquiring).map({ Unmanaged<RecordIndex>.fromOpaque($0) }) else {
      return nil
    }
    return index._withUnsafeGuaranteedRef { isInUse($0) } ? index : followed
  }

  private var followed: Unmanaged<RecordIndex>? {
    guard follow(), let index = loaded, isInUse(index) else { return nil }
    return .passUnretained(index)
  }

  @inline(__always)
  private func isInUse(_ index: RecordIndex) -> Bool {
    index[IndexLayout.Word.fileNumber] == numberInUse.value
  }

  /// Tells all processes which file the present write transaction uses; nil for none.
  func setInUse(_ index: RecordIndex?) {
    let number = index?[IndexLayout.Word.fileNumber] ?? 0
    if numberInUse.value != number { numberInUse.value = number }
  }

  /// Uses another index, and returns the one before it; nil if the file is in use already.
  func use(_ index: RecordIndex, inode: UInt64) -> RecordIndex? {
    indexes.withLock { use(index, inode: inode, &$0) }
  }

  private func use(_ index: RecordIndex, inode: UInt64, _ mapped: inout Mapped) -> RecordIndex? {
    // Another thread may have mapped the file already.
    guard inode != mapped.inode else { return nil }
    let old = mapped.all.last
    mapped.all.append(index)
    mapped.inode = inode
    pointer.store(UnsafeRawPointer(Unmanaged.passUnretained(index).toOpaque()), ordering: .releasing)
    return old
  }

  /// Uses no index until the next call of ``follow()`` or ``use(_:inode:)``.
  func forget() {
    indexes.withLock { mapped in
      pointer.store(nil, ordering: .releasing)
      mapped.all.last?.retire()
      mapped.inode = 0
    }
  }

  /// Maps the file at the path, unless it is mapped. Returns false if there is none, or if it belongs to another store.
  func follow() -> Bool {
    indexes.withLock { mapped -> Bool in
      var status = stat()
      if stat(path, &status) == 0, UInt64(status.st_ino) == mapped.inode { return true }
      let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
      guard descriptor >= 0 else { return false }
      defer { close(descriptor) }
      var header = [UInt64](repeating: 0, count: 3)
      guard fstat(descriptor, &status) == 0, pread(descriptor, &header, 24, 0) == 24,
        header[IndexLayout.Word.magic] == IndexLayout.magic, header[IndexLayout.Word.owner] == owner,
        case let cellCount = header[IndexLayout.Word.cellCount],
        cellCount >= IndexLayout.minimumCellCount, cellCount <= IndexLayout.maximumCellCount,
        Int(status.st_size) == IndexLayout.byteCount(cellCount: Int(cellCount)),
        let index = RecordIndex(descriptor: descriptor, cellCount: Int(cellCount))
      else { return false }
      use(index, inode: UInt64(status.st_ino), &mapped)?.retire()
      return true
    }
  }
}
