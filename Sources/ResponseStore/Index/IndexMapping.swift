import Glibc
import LMDB
import Synchronization

/// The index file as this process has mapped it, for lookups on any thread.
///
/// Maps the file again when another process has replaced it.
///
/// `@unchecked Sendable`: `pointer` points to an index that `indexes` keeps for as long as this object lives.
final class IndexMapping: @unchecked Sendable {
  private let path: String
  private let owner: UInt64
  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let indexes = Mutex(Mapped())

  private struct Mapped {
    /// Every index that was mapped, because a lookup may still use an older one. Older ones take no memory.
    var all: [RecordIndex] = []
    /// The file number of the last index; 0 if it was discarded.
    var inode: UInt64 = 0
  }

  /// Maps nothing yet.
  ///
  /// - Parameter owner: The identity of the data file, which the index must have.
  init(path: String, owner: UInt64) {
    self.path = path
    self.owner = owner
  }

  /// The index that this process has mapped last. Another process may have replaced it.
  @inline(__always)
  var loaded: RecordIndex? {
    pointer.load(ordering: .acquiring).map { Unmanaged<RecordIndex>.fromOpaque($0)._withUnsafeGuaranteedRef { $0 } }
  }

  /// The index. If another process replaced the file, maps the replacement.
  @inline(__always)
  var current: RecordIndex? {
    guard let index = loaded else { return nil }
    return index.isSuperseded ? followed : index
  }

  private var followed: RecordIndex? {
    _ = follow()
    return loaded
  }

  /// The index for a lookup in a snapshot; nil if it lacks the snapshot's last transaction.
  ///
  /// It lacks transactions if another program deleted the file and another process writes to a new one.
  ///
  /// The result counts no reference. An index lives as long as this object.
  @inline(__always)
  func unretained(forSnapshotOf transactionID: UInt64) -> Unmanaged<RecordIndex>? {
    guard let index = pointer.load(ordering: .acquiring).map({ Unmanaged<RecordIndex>.fromOpaque($0) }) else {
      return nil
    }
    let isUsable = index._withUnsafeGuaranteedRef { !$0.isSuperseded && $0.hasTransaction(transactionID) }
    return isUsable ? index : followed(forSnapshotOf: transactionID)
  }

  private func followed(forSnapshotOf transactionID: UInt64) -> Unmanaged<RecordIndex>? {
    guard let index = followed, index.hasTransaction(transactionID) else { return nil }
    return .passUnretained(index)
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
