import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The index file of a directory.
///
/// Opens the file, decides whether it can be trusted, and replaces it with a larger or smaller one. See
/// ``RecordIndex``.
///
/// Lookups on any thread use its ``mapping``. Everything else is called by the holder of the database's write lock, with
/// the number of its transaction.
///
/// `@unchecked Sendable`: only the holder of the write lock uses `replacement`, `addedCount` and `replaced`.
final class IndexFile: @unchecked Sendable {
  private let path: String
  private let owner: UInt64
  private let boot: Boot
  /// Whether the directory still contains this data file. Otherwise the index at the path belongs to another store.
  private let isInPlace: @Sendable () -> Bool
  /// Allocates a file's space. Returns 0 or an error number.
  private let allocate: @Sendable (CInt, Int) -> CInt
  /// The file as lookups use it.
  let mapping: IndexMapping
  /// The reason why the last file could not be created; nil if none was tried, because it would have been too large.
  private let failure = Mutex<LMDBError?>(nil)
  /// The maximum number of cells of a file, derived from the capacity.
  private let cellLimit = Atomic(IndexLayout.maximumCellCount)
  /// The index that is to replace the present one, while it takes over the records.
  private var replacement: IndexReplacement? {
    didSet { hasReplacement.store(replacement != nil, ordering: .relaxed) }
  }
  private let hasReplacement = Atomic(false)
  /// Whether an index was found corrupt since the last call of ``takeCorruption()``.
  let isFoundCorrupt = Atomic(false)
  /// The number of records that the write transaction adds. A record that replaces another one takes its cell.
  private var addedCount = 0
  /// The last index that was replaced, while its disk space is released. The position is the end of the released part.
  private var replaced: (index: RecordIndex, position: Int)?

  /// Creates an index file object; maps nothing yet.
  ///
  /// - Parameters:
  ///   - owner: The identity of the data file, which the index must have.
  ///   - numberInUse: The number of the file in use, which all processes of the directory share; by default only forked
  ///     children.
  ///   - isInPlace: Whether the path is still in the directory of the data file, so that a file there may be replaced.
  ///   - allocate: Allocates an empty file's space, as `MappedFileBlocks` by default. Without it, a mapped page that
  ///     finds no space raises a signal instead of an error.
  init(
    path: String, owner: UInt64, numberInUse: SharedWord = SharedWord(), boot: Boot = .current,
    isInPlace: @escaping @Sendable () -> Bool = { true },
    allocate: @escaping @Sendable (CInt, Int) -> CInt = { MappedFileBlocks.allocateEmptyFile($0, byteCount: $1) }
  ) {
    self.path = path
    self.owner = owner
    mapping = IndexMapping(path: path, owner: owner, numberInUse: numberInUse)
    self.boot = boot
    self.isInPlace = isInPlace
    self.allocate = allocate
  }

  // MARK: For lookups

  /// The index; nil before the first ``begin(transactionID:recordCount:nextRowID:)``, or if none could be created.
  ///
  /// If another process uses another file, maps that.
  @inline(__always)
  var current: RecordIndex? { mapping.current }

  /// The index that this process has mapped last. Another process may use another file.
  var loaded: RecordIndex? { mapping.loaded }

  /// Maps the present file if it can be used unchanged, for a process that must not wait for the write lock.
  ///
  /// The index may lack records of a process that committed them and died before publishing them.
  func attach(lastTransactionID: UInt64) {
    guard mapping.follow(), let index = loaded else { return }
    let isClean = index[IndexLayout.Word.clean] == lastTransactionID + 1
    let isOlder = index[IndexLayout.Word.transaction] < lastTransactionID
    if isOlder || !(index.boot == boot || isClean) { mapping.forget() }
  }

  /// Sets the maximum size of the file in bytes. During a replacement a second file exists: a smaller one while the
  /// index grows, the larger old one while it shrinks.
  func setMaximumByteCount(_ byteCount: Int) {
    cellLimit.store(IndexLayout.cellCount(forByteCount: byteCount), ordering: .relaxed)
  }

  /// Returns the number of records that fit into a file of the maximum size.
  static func maximumRecordCount(byteCount: Int) -> Int {
    IndexLayout.cellCount(forByteCount: byteCount) * IndexLayout.fullPercent / 100
  }

  // MARK: With the write lock

  /// Prepares the index for a write transaction: maps the file and applies the journal of the last transaction.
  ///
  /// If no file can be trusted, creates one. It lacks all records until a rebuild adds them.
  ///
  /// - Parameter nextRowID: A number above every row ID in the database.
  /// - Returns: False if there is no space for an index. Then the transaction must not add records.
  func begin(transactionID: UInt64, recordCount: Int, nextRowID: UInt64) -> Bool {
    addedCount = 0
    // A process that died during a replacement left this file.
    if loaded == nil, isInPlace() { unlink(NewIndexFile.temporaryPath(of: path)) }
    let isMapped = mapping.follow()
    // Another process has replaced the index.
    if let replacement, replacement.old !== loaded { endReplacement() }
    releaseReplaced(byteCount: IndexLayout.releasedByteCount)
    if isMapped, let index = loaded, isTrusted(index, transactionID: transactionID) {
      while true {
        switch index.settle(transactionID: transactionID, with: replacement) {
        case .done:
          // A corrupt word, or a process that died while it changed the word.
          if index.lastTombstone == .max { index.lastTombstone = transactionID }
          mapping.setInUse(index)
          return true
        case .full:
          // Without space for growth, a later rebuild adds the records that do not fit.
          guard grow(to: index.cellCount * 2, homeCount: .max) else {
            index.setRebuildPosition(.rows(below: nextRowID))
            index.skipChange()
            continue
          }
          return begin(transactionID: transactionID, recordCount: recordCount, nextRowID: nextRowID)
        case .corrupt: isFoundCorrupt.store(true, ordering: .relaxed)
        case .foreign: break
        }
        break
      }
    }
    guard isInPlace() else { return false }
    // Free the space of the unusable file before the new one takes its own.
    discard()
    let cellCount = fittingCellCount(IndexLayout.cellCount(forRecordCount: recordCount))
    guard let new = create(cellCount: cellCount) else { return false }
    let index = new.index
    index[IndexLayout.Word.owner] = owner
    index.boot = boot
    index.setRebuildPosition(recordCount == 0 ? nil : .rows(below: nextRowID))
    index.clearJournal(for: transactionID)
    index.lastTombstone = transactionID
    return putInPlace(new)
  }

  /// Applies the journal of the last transaction, in a transaction that changes nothing.
  ///
  /// If the journal does not match, the next ``begin(transactionID:recordCount:nextRowID:)`` handles it.
  func publish(transactionID: UInt64) {
    guard let index = current else { return }
    _ = index.settle(transactionID: transactionID, with: replacement)
  }

  /// Whether there is an index that can record changes.
  var isReady: Bool { loaded != nil }

  /// Whether changes wait for the next holder of the write lock.
  var hasJournal: Bool { loaded?.hasJournal ?? false }

  /// The maximum number of changes of a write transaction; 0 without an index.
  var journalCapacity: Int { loaded?.journalCapacity ?? 0 }

  /// Records a change of the write transaction in the journal; see ``RecordIndex/note(_:)``.
  func note(_ change: IndexChange) -> Bool {
    guard let index = loaded, index.note(change) else { return false }
    if case .insert(_, replacing: nil) = change { addedCount += 1 }
    return true
  }

  /// Makes space for `count` more records, in addition to those that the transaction adds.
  ///
  /// The cells of records that the transaction removes are not free yet.
  ///
  /// From ``IndexLayout/growthPercent`` on, each call copies some records to a larger file, which is in use before the
  /// present one is full. Without space for a larger file, the present one is kept. Returns false if that is full.
  func reserve(_ count: Int) -> Bool {
    guard let index = loaded else { return false }
    let needed = index.recordCount + addedCount + count
    guard needed * 100 > index.cellCount * IndexLayout.growthPercent else { return true }
    failure.withLock { $0 = nil }
    let hasSpace = needed * 100 <= index.cellCount * IndexLayout.fullPercent
    return grow(
      to: max(index.cellCount * 2, IndexLayout.cellCount(forRecordCount: needed)),
      homeCount: hasSpace ? count * IndexLayout.homeCountPerNewRecord : .max) || hasSpace
  }

  /// The function name in the error for a record that found no space because ``reserve(_:)`` failed.
  static let reservation = "IndexFile.reserve"

  /// Returns the failed system call behind an error of ``reservation``, and any other error unchanged.
  func cause(of error: LMDBError) -> LMDBError {
    error.function == Self.reservation ? failure.withLock { $0 } ?? error : error
  }

  /// Whether the file exceeds the maximum size, for example after the capacity was lowered.
  var isTooLarge: Bool { loaded.map { $0.cellCount > cellLimit.load(ordering: .relaxed) } ?? false }

  /// Whether this process replaces the index at present. Any thread can read it.
  var isBeingReplaced: Bool { hasReplacement.load(ordering: .relaxed) }

  /// Does a step of the replacement that is in progress, or toward a smaller index if the present one is too large.
  ///
  /// - Parameter homeCount: The number of cells whose records are copied.
  /// - Returns: Whether there is more to do; false if the records do not fit into a smaller index.
  func advanceReplacement(homeCount: Int) -> Bool {
    guard let index = loaded, index.isComplete else { return false }
    let limit = cellLimit.load(ordering: .relaxed)
    guard let cellCount = isTooLarge ? limit : replacement?.new.index.cellCount,
      index.recordCount * 100 <= cellCount * IndexLayout.fullPercent
    else { return false }
    return replace(index, cellCount: cellCount, homeCount: homeCount) && replacement != nil
  }

  /// Marks the index as clean, so that it can be used after a reboot, and waits until the file is synced.
  ///
  /// Ends a replacement that is in progress. Call this in a write transaction that changes nothing. The next one removes
  /// the mark. Returns false if the file could not be synced.
  func markClean(transactionID: UInt64) -> Bool {
    endReplacement()
    releaseReplaced(byteCount: .max)
    guard let index = loaded, index.synchronize(byteCount: index.byteCount) else { return false }
    index[IndexLayout.Word.clean] = transactionID
    return index.synchronize(byteCount: IndexLayout.pageByteCount)
  }

  /// Whether the index file survived unchanged.
  ///
  /// The page cache has kept it since this boot began to use it, or it was synced and the data did not change since.
  private func isTrusted(_ index: RecordIndex, transactionID: UInt64) -> Bool {
    let clean = index[IndexLayout.Word.clean]
    guard index[IndexLayout.Word.fileNumber] != 0, index.boot == boot || clean == transactionID else { return false }
    if index.boot != boot { index.boot = boot }
    guard clean != 0 else { return true }
    // Sync the cleared mark before any change reaches the disk.
    index[IndexLayout.Word.clean] = 0
    return index.synchronize(byteCount: IndexLayout.pageByteCount)
  }

  // MARK: Files

  /// Does a step toward a larger index. Returns false if there is no space for one.
  private func grow(to cellCount: Int, homeCount: Int) -> Bool {
    guard let old = loaded else { return false }
    let newCount = fittingCellCount(cellCount)
    // Do not replace it for a small gain, because both files take space at the same time.
    guard newCount >= old.cellCount / 4 * 5 else { return false }
    return replace(old, cellCount: newCount, homeCount: homeCount)
  }

  /// Returns the limit divided by a power of two, so that a file being replaced has at most half the maximum size.
  private func fittingCellCount(_ wanted: Int) -> Int {
    var count = cellLimit.load(ordering: .relaxed)
    while count / 2 >= max(wanted, IndexLayout.minimumCellCount) { count /= 2 }
    return count
  }

  /// Copies the records of some home cells to an index with another number of cells. After the last one, replaces the
  /// present index.
  ///
  /// Returns false if there is no space for the other index.
  private func replace(_ old: RecordIndex, cellCount: Int, homeCount: Int) -> Bool {
    // A rebuild adds records without the journal, so a replacement would not follow.
    var isStepwise = homeCount < old.cellCount && old.isComplete
    if let replacement, replacement.old === old, replacement.new.index.cellCount == cellCount, old.isComplete {
      switch replacement.advance(homeCount: homeCount) {
      case .unfinished: return true
      case .done where replacement.hasEveryRecord && finish(replacement): return true
      // Another process has changed records that were copied. Copy all again while none can change.
      case .done, .full: isStepwise = false
      case .corrupt:
        noteCorruption(of: old)
        endReplacement()
        return false
      }
    }
    endReplacement()
    guard isInPlace(), let new = create(cellCount: cellCount) else { return false }
    let replacement = IndexReplacement(of: old, by: new)
    self.replacement = replacement
    if isStepwise, replacement.advance(homeCount: homeCount) == .unfinished { return true }
    old.advise(MADV_SEQUENTIAL)
    let progress = replacement.advance(homeCount: .max)
    if progress == .done, finish(replacement) { return true }
    if progress == .corrupt { noteCorruption(of: old) }
    endReplacement()
    old.advise(MADV_RANDOM)
    return false
  }

  /// Puts a replacement in place that has all records. Returns false if that fails.
  private func finish(_ replacement: IndexReplacement) -> Bool {
    let (old, new) = (replacement.old, replacement.new)
    guard old.copyHeader(into: new.index), isInPlace(), putInPlace(new) else { return false }
    self.replacement = nil
    return true
  }

  private func endReplacement() {
    replacement?.new.delete()
    replacement = nil
  }

  /// Creates a file. Returns nil if there is no space for it.
  private func create(cellCount: Int) -> NewIndexFile? {
    releaseReplaced(byteCount: .max)
    do throws(LMDBError) {
      return try NewIndexFile(path: path, cellCount: cellCount, allocate: allocate)
    } catch {
      failure.withLock { $0 = error }
      return nil
    }
  }

  /// Puts a new file at the path of the index, and uses it.
  private func putInPlace(_ new: NewIndexFile) -> Bool {
    guard new.putInPlace() else { return false }
    // Do not map the file again: nothing may fail once the file is in place.
    let old = mapping.use(new.index, inode: new.inode)
    if let old { replaced = (old, IndexLayout.pageByteCount) }
    mapping.setInUse(new.index)
    return true
  }

  /// Releases some of the disk space of the replaced index, because releasing all of it takes long.
  private func releaseReplaced(byteCount: Int) {
    guard var replaced else { return }
    let isDone = replaced.index.releaseSpace(from: &replaced.position, byteCount: byteCount)
    if isDone { replaced.index.retire() }
    self.replaced = isDone ? nil : replaced
  }

  /// Discards an index that cannot be trusted, in all processes.
  func discard() {
    mapping.setInUse(nil)
    unlink(path)
    loaded?.releaseCells()
    mapping.forget()
  }
}
