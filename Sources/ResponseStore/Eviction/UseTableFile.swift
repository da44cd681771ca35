import Glibc
import LMDB
import Synchronization

/// The use table of a directory: a file that all processes map. See ``UseTable``.
///
/// Opened, created and replaced only by whoever holds LMDB's write transaction; uses are noted by anyone, without a lock.
///
/// `@unchecked Sendable`: `current` points to a table that `tables` keeps for as long as this object lives.
final class UseTableFile: @unchecked Sendable {
  static let name = "LMDBURLCache.uses"

  private let path: String
  /// What ties the table to the data it speaks of.
  private let owner: UInt64
  private let current = Atomic<UnsafeRawPointer?>(nil)
  /// Every table that was mapped: a reader may still be in an older one. Each that grew is twice as large as the one before, so all
  /// older ones together are no larger than the newest; one that was too large has given its room back.
  private let tables = Mutex<[UseTable]>([])
  private let inode = Atomic<UInt64>(0)

  init(path: String, owner: UInt64) {
    self.path = path
    self.owner = owner
  }

  /// The table; nil if there is none, because it could not be made.
  var table: UseTable? {
    current.load(ordering: .acquiring).map { Unmanaged<UseTable>.fromOpaque($0).takeUnretainedValue() }
  }

  /// Notes that a record was used.
  func noteUse(of digest: UInt64) {
    // Without a reference of its own, which all threads would count: no table goes before this object does.
    guard let table = current.load(ordering: .acquiring) else { return }
    Unmanaged<UseTable>.fromOpaque(table)._withUnsafeGuaranteedRef { $0.noteUse(of: digest) }
  }

  /// The share of the capacity that a table may take; beyond it records stay unknown and go first, oldest first.
  static func largestByteCount(capacityByteCount: Int) -> Int { capacityByteCount / 48 }

  // MARK: With the write transaction

  /// Maps the table that the directory has now, or makes a new one. True if it is new, so that the records that are stored
  /// already have to be entered.
  func openOrCreate() -> Bool {
    if adopt() { return false }
    return create(slotCount: UseTable.smallestSlotCount, from: nil)
  }

  /// Follows another process that has replaced the table; costs a `stat`.
  func follow() {
    var status = stat()
    let isSame = stat(path, &status) == 0 && UInt64(status.st_ino) == inode.load(ordering: .relaxed)
    if !isSame { _ = openOrCreate() }
  }

  /// Takes a larger table's place, if it is time.
  func growIfCrowded(capacityByteCount: Int) {
    guard let table, table.isCrowded,
      UseTable.byteCount(slotCount: table.slotCount * 2) <= Self.largestByteCount(capacityByteCount: capacityByteCount)
    else { return }
    if create(slotCount: table.slotCount * 2, from: table) {
      table.setHeader(UseTable.HeaderWord.isSuperseded, 1)
    }
  }

  /// Whether the table takes more than its share of a capacity.
  func isTooLarge(capacityByteCount: Int) -> Bool {
    guard let table else { return false }
    return table.slotCount > UseTable.smallestSlotCount
      && table.byteCount > Self.largestByteCount(capacityByteCount: capacityByteCount)
  }

  /// Puts a smaller table in its place, if it takes more than its share; what finds no place there is forgotten.
  func shrinkIfTooLarge(capacityByteCount: Int) {
    guard isTooLarge(capacityByteCount: capacityByteCount), let table else { return }
    var slotCount = table.slotCount
    while slotCount > UseTable.smallestSlotCount,
      UseTable.byteCount(slotCount: slotCount) > Self.largestByteCount(capacityByteCount: capacityByteCount)
    {
      slotCount /= 2
    }
    if create(slotCount: slotCount, from: table) {
      table.setHeader(UseTable.HeaderWord.isSuperseded, 1)
      table.giveRoomBack()
    }
  }

  private func adopt() -> Bool {
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    var header = [UInt64](repeating: 0, count: 8)
    let headerByteCount = header.count * 8
    guard pread(descriptor, &header, headerByteCount, 0) == headerByteCount,
      header[UseTable.HeaderWord.magic] == UseTable.magic, header[UseTable.HeaderWord.owner] == owner
    else { return false }
    let slotCount = header[UseTable.HeaderWord.slotCount]
    guard slotCount >= 64, slotCount <= 1 << 30, slotCount & (slotCount - 1) == 0 else { return false }
    var status = stat()
    // A copy of the directory may have been made with holes.
    guard fstat(descriptor, &status) == 0, status.st_size == UseTable.byteCount(slotCount: Int(slotCount)),
      status.st_blocks * 512 >= status.st_size || posix_fallocate(descriptor, 0, status.st_size) == 0
    else { return false }
    return map(descriptor, slotCount: Int(slotCount), inode: UInt64(status.st_ino))
  }

  /// Makes a table under another name, fills it, and moves it into place: no process ever sees half a one.
  private func create(slotCount: Int, from old: UseTable?) -> Bool {
    let temporary = path + ".new"
    unlink(temporary)
    let descriptor = FileDescriptor.open(
      temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    var status = stat()
    // Room is taken now: a page of a mapped file that finds none later is a signal, not an error.
    guard posix_fallocate(descriptor, 0, UseTable.byteCount(slotCount: slotCount)) == 0,
      fstat(descriptor, &status) == 0,
      let table = Self.mapped(descriptor, slotCount: slotCount)
    else {
      unlink(temporary)
      return false
    }
    table.setHeader(UseTable.HeaderWord.magic, UseTable.magic)
    table.setHeader(UseTable.HeaderWord.owner, owner)
    table.setHeader(UseTable.HeaderWord.slotCount, UInt64(slotCount))
    old?.copy(into: table)
    guard rename(temporary, path) == 0 else {
      unlink(temporary)
      return false
    }
    use(table, inode: UInt64(status.st_ino))
    return true
  }

  private func map(_ descriptor: CInt, slotCount: Int, inode: UInt64) -> Bool {
    guard let table = Self.mapped(descriptor, slotCount: slotCount) else { return false }
    use(table, inode: inode)
    return true
  }

  private static func mapped(_ descriptor: CInt, slotCount: Int) -> UseTable? {
    let memory = mmap(
      nil, UseTable.byteCount(slotCount: slotCount), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    guard let memory, memory != MAP_FAILED else { return nil }
    var generator = SystemRandomNumberGenerator()
    return UseTable(mapped: memory, slotCount: slotCount, seed: generator.next())
  }

  private func use(_ table: UseTable, inode newInode: UInt64) {
    tables.withLock { $0.append(table) }
    inode.store(newInode, ordering: .relaxed)
    current.store(UnsafeRawPointer(Unmanaged.passUnretained(table).toOpaque()), ordering: .releasing)
  }
}
