import Glibc
import LMDB
import Synchronization

/// The index file of a directory: opening it, telling whether it can be trusted, and putting a larger one in its place. See
/// ``RecordIndex``.
///
/// Lookups, on any thread, take ``current``. Everything else is called by the holder of the database's write lock, with the
/// number of its transaction.
///
/// `@unchecked Sendable`: `pointer` points to an index that `indexes` keeps for as long as this object lives.
final class IndexFile: @unchecked Sendable {
  private let path: String
  private let owner: UInt64
  private let boot: Boot
  /// Whether the directory is still the data's; else its index is another store's.
  private let isInPlace: @Sendable () -> Bool
  /// Takes a file's space; returns 0 or an error number.
  private let allocate: @Sendable (CInt, Int) -> CInt
  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let indexes = Mutex(Mapped())
  /// Why the last file could not be made; nil if none was tried, as it would have been too large.
  private let failure = Mutex<LMDBError?>(nil)
  /// The most slots that a file may get: a share of the capacity.
  private let slotLimit = Atomic(IndexLayout.maximumSlotCount)

  private struct Mapped {
    /// Every index that was mapped, since a lookup may still be in an older one. Those take no memory any more.
    var all: [RecordIndex] = []
    /// Of the last one; 0 if it was discarded.
    var inode: UInt64 = 0
  }

  /// - Parameters:
  ///   - path: Of the file.
  ///   - owner: What ties the index to its data.
  ///   - boot: The present boot of the machine.
  ///   - isInPlace: Whether the path still is in the data's directory, so that a file there may be replaced.
  ///   - allocate: Takes a file's space. `posix_fallocate` by default: a page of a mapped file that finds no space later is
  ///     a signal, not an error.
  init(
    path: String, owner: UInt64, boot: Boot = .current, isInPlace: @escaping @Sendable () -> Bool = { true },
    allocate: @escaping @Sendable (CInt, Int) -> CInt = { posix_fallocate($0, 0, $1) }
  ) {
    self.path = path
    self.owner = owner
    self.boot = boot
    self.isInPlace = isInPlace
    self.allocate = allocate
  }

  // MARK: For lookups

  /// The index; nil before the first ``begin(transactionID:recordCount:nextRowID:)``, and if none could be made. Follows
  /// another process that has put a larger one in its place.
  @inline(__always)
  var current: RecordIndex? {
    guard let index = loaded else { return nil }
    return index.isSuperseded ? followed : index
  }

  /// The same without counting a reference, for lookups: an index lives as long as this object.
  @inline(__always)
  var unretained: Unmanaged<RecordIndex>? {
    guard let index = pointer.load(ordering: .acquiring).map({ Unmanaged<RecordIndex>.fromOpaque($0) }) else {
      return nil
    }
    return index._withUnsafeGuaranteedRef { $0.isSuperseded } ? current.map { Unmanaged.passUnretained($0) } : index
  }

  @inline(__always)
  private var loaded: RecordIndex? {
    pointer.load(ordering: .acquiring).map { Unmanaged<RecordIndex>.fromOpaque($0)._withUnsafeGuaranteedRef { $0 } }
  }

  private var followed: RecordIndex? {
    _ = follow()
    return loaded
  }

  /// Maps the file in place if it can be trusted as it is, for a process that must not wait for the write lock. It may lack
  /// what a process committed that has died before it could publish.
  ///
  /// - Parameter lastTransactionID: The number of the last commit.
  func attach(lastTransactionID: UInt64) {
    guard follow(), let index = loaded else { return }
    let isOfThisBoot = index[IndexLayout.Word.boot] == boot.high && index[IndexLayout.Word.boot + 1] == boot.low
    let isClean = index[IndexLayout.Word.clean] == lastTransactionID + 1
    let isOlder = index[IndexLayout.Word.transaction] < lastTransactionID
    if isOlder || !(isOfThisBoot || isClean) { forgetMapping() }
  }

  /// Maps the file in place, if another one has taken the place of the one that is mapped.
  func followReplacement() {
    if loaded != nil { _ = follow() }
  }

  /// The most bytes that the file may get. While a larger one takes its place, half as many come on top.
  func setMaximumByteCount(_ byteCount: Int) {
    slotLimit.store(IndexLayout.slotCount(forByteCount: byteCount), ordering: .relaxed)
  }

  /// How many records a file of the maximum size holds.
  static func maximumRecordCount(byteCount: Int) -> Int {
    IndexLayout.slotCount(forByteCount: byteCount) * IndexLayout.fullPercent / 100
  }

  // MARK: With the write lock

  /// Makes the index ready for a write transaction: maps the one in place, and carries out what the last transaction noted.
  /// If there is none that can be trusted, it makes one, which lacks all records until a rebuild adds them.
  ///
  /// - Parameters:
  ///   - transactionID: The number of the write transaction that has begun.
  ///   - recordCount: The number of records in the database.
  ///   - nextRowID: Higher than every row ID in it.
  /// - Returns: False if there is no space for an index. Then the transaction must not add any record.
  func begin(transactionID: UInt64, recordCount: Int, nextRowID: UInt64) -> Bool {
    // A process that died while it made a larger one has left it.
    if loaded == nil, isInPlace() { unlink(path + ".new") }
    if follow(), let index = loaded, isTrusted(index, transactionID: transactionID) {
      if index.isSuperseded { index[IndexLayout.Word.isSuperseded] = 0 }
      while true {
        switch index.settle(transactionID: transactionID) {
        case .done: return true
        case .full:
          // What finds no place even so is left to a rebuild, when there is space.
          guard grow(to: index.slotCount * 2) else {
            index.setRebuildPosition(.rows(below: nextRowID))
            index[IndexLayout.Word.carriedOutCount] += 1
            continue
          }
          return begin(transactionID: transactionID, recordCount: recordCount, nextRowID: nextRowID)
        case .foreign: break
        }
        break
      }
    }
    guard isInPlace() else { return false }
    // The space of what cannot be used is free before the new one takes its own.
    discard()
    let slotCount = fittingSlotCount(IndexLayout.slotCount(forRecordCount: recordCount))
    let isMade = create(slotCount: slotCount) { index in
      index[IndexLayout.Word.owner] = owner
      index[IndexLayout.Word.boot] = boot.high
      index[IndexLayout.Word.boot + 1] = boot.low
      index.setRebuildPosition(recordCount == 0 ? nil : .rows(below: nextRowID))
      index[IndexLayout.Word.transaction] = transactionID
      index[IndexLayout.Word.lastMark] = transactionID
      return true
    }
    return isMade
  }

  /// Carries out what the last transaction noted, in a transaction that changes nothing. What is not in order is left to the next
  /// ``begin(transactionID:recordCount:nextRowID:)``.
  func publish(transactionID: UInt64) {
    guard let index = loaded, !index.isSuperseded else { return }
    _ = index.settle(transactionID: transactionID)
  }

  /// Whether there is an index to note changes in.
  var isReady: Bool { loaded != nil }

  /// Whether changes wait for the next holder of the write lock.
  var hasJournal: Bool { loaded?.hasJournal ?? false }

  /// The number of changes that a write transaction can note; 0 without an index.
  var journalCapacity: Int { loaded?.journalCapacity ?? 0 }

  /// Notes a change of the write transaction; see ``RecordIndex/note(_:)``.
  func note(_ change: IndexChange) -> Bool { loaded?.note(change) ?? false }

  /// Makes sure that so many records more find a place, with those that the transaction has noted. False if they do not, since
  /// there is no space for a larger file: then the old one stays.
  func reserve(_ count: Int) -> Bool {
    guard let index = loaded else { return false }
    let needed = index.recordCount + Int(index[IndexLayout.Word.changeCount]) + count
    guard needed * 100 > index.slotCount * IndexLayout.growthPercent else { return true }
    failure.withLock { $0 = nil }
    return grow(to: max(index.slotCount * 2, IndexLayout.slotCount(forRecordCount: needed)))
      || needed * 100 <= index.slotCount * IndexLayout.fullPercent
  }

  /// What ``reserve(_:)`` failed for, so that a record found no place.
  static let reservation = "IndexFile.reserve"

  /// The failed system call behind an error of ``reservation``; any other error as it is.
  func cause(of error: LMDBError) -> LMDBError {
    error.function == Self.reservation ? failure.withLock { $0 } ?? error : error
  }

  /// Whether the file is larger than it may be, as after the capacity was lowered.
  var isTooLarge: Bool { loaded.map { $0.slotCount > slotLimit.load(ordering: .relaxed) } ?? false }

  /// Puts a smaller file in the place of one that is too large, if the records find room in it.
  func shrink() {
    let limit = slotLimit.load(ordering: .relaxed)
    guard let index = loaded, index.slotCount > limit,
      index.recordCount * 100 <= limit * IndexLayout.fullPercent
    else { return }
    _ = replace(index, slotCount: limit)
  }

  /// Marks the index as clean, so that it can be used after a reboot. Waits until the file is on the disk. The next write
  /// transaction takes the mark away.
  ///
  /// - Parameter transactionID: The number of the write transaction that has begun and that will change nothing.
  /// - Returns: False if the file could not be synced.
  func markClean(transactionID: UInt64) -> Bool {
    guard let index = loaded, index.synchronize(byteCount: index.byteCount) else { return false }
    index[IndexLayout.Word.clean] = transactionID
    return index.synchronize(byteCount: IndexLayout.pageByteCount)
  }

  /// The page cache has kept the file since this boot began to use it; or it was on the disk, and the data has not changed
  /// since.
  private func isTrusted(_ index: RecordIndex, transactionID: UInt64) -> Bool {
    let isOfThisBoot = index[IndexLayout.Word.boot] == boot.high && index[IndexLayout.Word.boot + 1] == boot.low
    let clean = index[IndexLayout.Word.clean]
    guard isOfThisBoot || clean == transactionID else { return false }
    if !isOfThisBoot {
      index[IndexLayout.Word.boot] = boot.high
      index[IndexLayout.Word.boot + 1] = boot.low
    }
    guard clean != 0 else { return true }
    // On the disk before any change is.
    index[IndexLayout.Word.clean] = 0
    return index.synchronize(byteCount: IndexLayout.pageByteCount)
  }

  // MARK: Files

  /// Puts a larger index in the place of the present one.
  private func grow(to slotCount: Int) -> Bool {
    guard let old = loaded else { return false }
    let newCount = fittingSlotCount(slotCount)
    // Not for a little, as both files take space meanwhile.
    guard newCount >= old.slotCount / 4 * 5 else { return false }
    return replace(old, slotCount: newCount)
  }

  /// The limit, a half of it, a quarter and so on: so that with the largest file there is one of half its size at most.
  private func fittingSlotCount(_ wanted: Int) -> Int {
    var count = slotLimit.load(ordering: .relaxed)
    while count / 2 >= max(wanted, IndexLayout.minimumSlotCount) { count /= 2 }
    return count
  }

  private func replace(_ old: RecordIndex, slotCount: Int) -> Bool {
    old.advise(MADV_SEQUENTIAL)
    let isMade = create(slotCount: slotCount) { index in
      guard old.copy(into: index) else { return false }
      // Before the file is renamed: whoever maps the old one looks at the path then, and again until it is.
      old[IndexLayout.Word.isSuperseded] = 1
      return true
    }
    if !isMade {
      old[IndexLayout.Word.isSuperseded] = 0
      old.advise(MADV_RANDOM)
    }
    return isMade
  }

  /// Makes an index under another name and moves it into place, so that no process sees half a one.
  private func create(slotCount: Int, fill: (RecordIndex) -> Bool) -> Bool {
    let old = loaded
    let temporary = path + ".new"
    unlink(temporary)
    let descriptor = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
    guard descriptor >= 0 else { return fail("open", errno) }
    defer { close(descriptor) }
    reachedIndexStep()
    let allocation = allocate(descriptor, IndexLayout.byteCount(slotCount: slotCount))
    guard allocation == 0, let index = Self.map(descriptor, slotCount: slotCount) else {
      _ = allocation == 0 ? fail("mmap", errno) : fail("posix_fallocate", allocation)
      unlink(temporary)
      return false
    }
    index[IndexLayout.Word.magic] = IndexLayout.magic
    index[IndexLayout.Word.slotCount] = UInt64(slotCount)
    var status = stat()
    guard fill(index), fstat(descriptor, &status) == 0, rename(temporary, path) == 0 else {
      unlink(temporary)
      return false
    }
    reachedIndexStep()
    old?.releaseSlots()
    // Not mapped anew: nothing may fail once the file is in place.
    indexes.withLock { use(index, inode: UInt64(status.st_ino), &$0) }
    return true
  }

  /// False, for a system call that failed.
  private func fail(_ function: String, _ number: CInt) -> Bool {
    failure.withLock { $0 = LMDBError(code: LMDBError.Code(rawValue: number), function: function) }
    return false
  }

  private func use(_ index: RecordIndex, inode: UInt64, _ mapped: inout Mapped) {
    // Another thread may have followed to the file already.
    guard inode != mapped.inode else { return }
    let old = mapped.all.last
    mapped.all.append(index)
    mapped.inode = inode
    pointer.store(UnsafeRawPointer(Unmanaged.passUnretained(index).toOpaque()), ordering: .releasing)
    old?.retire()
  }

  /// Gives up an index that cannot be trusted, in all processes.
  func discard() {
    loaded?[IndexLayout.Word.isSuperseded] = 1
    unlink(path)
    loaded?.releaseSlots()
    forgetMapping()
  }

  private func forgetMapping() {
    indexes.withLock { mapped in
      pointer.store(nil, ordering: .releasing)
      mapped.all.last?.retire()
      mapped.inode = 0
    }
  }

  /// Maps the file at the path, unless it is mapped. False if there is none, or none of this store.
  private func follow() -> Bool {
    indexes.withLock { mapped -> Bool in
      var status = stat()
      if stat(path, &status) == 0, UInt64(status.st_ino) == mapped.inode { return true }
      let descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)
      guard descriptor >= 0 else { return false }
      defer { close(descriptor) }
      var header = [UInt64](repeating: 0, count: 3)
      guard fstat(descriptor, &status) == 0, pread(descriptor, &header, 24, 0) == 24,
        header[IndexLayout.Word.magic] == IndexLayout.magic, header[IndexLayout.Word.owner] == owner,
        case let slotCount = header[IndexLayout.Word.slotCount],
        slotCount >= IndexLayout.minimumSlotCount, slotCount <= IndexLayout.maximumSlotCount,
        Int(status.st_size) == IndexLayout.byteCount(slotCount: Int(slotCount)),
        let index = Self.map(descriptor, slotCount: Int(slotCount))
      else { return false }
      use(index, inode: UInt64(status.st_ino), &mapped)
      return true
    }
  }

  private static func map(_ descriptor: CInt, slotCount: Int) -> RecordIndex? {
    let memory = mmap(
      nil, IndexLayout.byteCount(slotCount: slotCount), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    guard let memory, memory != MAP_FAILED else { return nil }
    let index = RecordIndex(mapped: memory, slotCount: slotCount)
    // From the first fault on: a fault reads no more than a page, and the page cache holds no larger pieces, of which the
    // kernel would write all for each changed word.
    index.advise(MADV_RANDOM)
    return index
  }
}

/// One boot of the machine: as long as it lasts, the page cache keeps what a killed process has written.
struct Boot: Equatable, Sendable {
  var high: UInt64
  var low: UInt64

  static let current: Boot = {
    var text = [UInt8](repeating: 0, count: 64)
    let descriptor = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    let count = descriptor < 0 ? 0 : max(read(descriptor, &text, text.count), 0)
    if descriptor >= 0 { close(descriptor) }
    let digits = String(decoding: text.prefix(count), as: UTF8.self).filter(\.isHexDigit)
    // Where the system does not tell, a process trusts its own index alone.
    return Boot(
      high: UInt64(digits.prefix(16), radix: 16) ?? .random(in: 1 ... .max),
      low: UInt64(digits.dropFirst(16), radix: 16) ?? .random(in: 1 ... .max))
  }()
}
