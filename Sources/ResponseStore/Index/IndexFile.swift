import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The index of a directory: complete and in use, or absent.
///
/// While it is absent, the disk tier is off: lookups miss, and no transaction changes records. ``IndexMaintainer``
/// builds it. See ``RecordIndex`` for the file in use.
///
/// Lookups on any thread use its ``mapping``. The holder of the database's write lock calls the rest, unless stated
/// otherwise.
///
/// `@unchecked Sendable`: only the holder of the write lock uses `addedCount`.
final class IndexFile: @unchecked Sendable {
  private let path: String
  private let owner: UInt64
  /// Whether the directory still contains this data file. Otherwise the index at the path belongs to another store.
  private let isInPlace: @Sendable () -> Bool
  /// The file as lookups use it.
  let mapping: IndexMapping
  /// The reason why the last file could not be created; nil after a success.
  private let lastFailure = Mutex<LMDBError?>(nil)
  /// The maximum number of cells of a file, derived from the capacity.
  private let cellLimit = Atomic(IndexLayout.maximumCellCount)
  /// The number of records that the write transaction adds. A record that replaces another one takes its cell.
  private var addedCount = 0

  /// Creates an index file object; maps nothing yet.
  ///
  /// - Parameters:
  ///   - owner: The identity of the data file, which the index must have.
  ///   - numberInUse: The number of the file in use, which all processes of the directory share. 0 for none.
  ///   - isInPlace: Whether the path is still in the directory of the data file, so that a file there may be replaced.
  init(
    path: String, owner: UInt64, numberInUse: SharedWord, isInPlace: @escaping @Sendable () -> Bool = { true }
  ) {
    self.path = path
    self.owner = owner
    mapping = IndexMapping(path: path, owner: owner, numberInUse: numberInUse)
    self.isInPlace = isInPlace
  }

  // MARK: On any thread

  /// The index in use; nil if there is none, or if this process cannot map it.
  @inline(__always)
  var current: RecordIndex? { mapping.current }

  /// Whether there is no index in use.
  var isAbsent: Bool { !mapping.isAnyInUse }

  /// Sets the maximum size of the file in bytes. During a replacement a second file exists: a smaller one while the
  /// index grows, the larger old one while it shrinks.
  func setMaximumByteCount(_ byteCount: Int) {
    cellLimit.store(IndexLayout.cellCount(forByteCount: byteCount), ordering: .relaxed)
  }

  /// Returns the number of records that fit into a file of the maximum size.
  static func maximumRecordCount(byteCount: Int) -> Int {
    IndexLayout.cellCount(forByteCount: byteCount) * IndexLayout.fullPercent / 100
  }

  // MARK: Transactions

  /// Prepares the index for a write transaction: applies the journal of the last commit.
  ///
  /// A file that does not match the last commit is no longer used.
  ///
  /// - Throws: ``LMDBError`` if there is no index, or if this process cannot map it. Then the transaction must not
  ///   change records. If there is an index, it must not commit at all.
  func begin(transactionID: UInt64) throws(LMDBError) {
    addedCount = 0
    guard !isAbsent else { throw absence }
    // A process that was killed while it replaced the index may have renamed the new file, and not yet set its number.
    guard try mapping.follow(), let index = mapping.loaded, index.settle(transactionID: transactionID) else {
      if isInPlace() { discard() }
      throw absence
    }
    mapping.setInUse(index)
  }

  /// Applies the journal of the write transaction that has been committed, while no other transaction can begin.
  ///
  /// If the process dies before it is done, the next transaction does it in ``begin(transactionID:)``.
  func publish(transactionID: UInt64) {
    guard let index = current, index.hasJournal else { return }
    if !index.settle(transactionID: transactionID + 1), isInPlace() { discard() }
  }

  private var absence: LMDBError {
    lastFailure.withLock { $0 } ?? LMDBError(code: .temporarilyUnavailable, function: Self.beginning)
  }

  /// The function name in the error for a transaction that found no usable index, which can be built.
  static let beginning = "IndexFile.begin"

  /// Stops all processes from using the index, which must be built again.
  func discard() { mapping.setInUse(nil) }

  /// The maximum number of changes of a write transaction; 0 without an index.
  var journalCapacity: Int { current?.journalCapacity ?? 0 }

  /// Records a change of the write transaction in the journal; see ``RecordIndex/note(_:)``.
  func note(_ change: IndexChange) -> Bool {
    guard let index = current, index.note(change) else { return false }
    if case .insert(_, replacing: nil) = change { addedCount += 1 }
    return true
  }

  /// Whether there are cells for `count` more records, in addition to those that the transaction adds.
  ///
  /// The cells of records that the transaction removes are not free yet.
  func hasSpace(for count: Int) -> Bool {
    current?.hasSpace(for: addedCount + count) ?? false
  }

  /// The function name in the error for a record that found no space because ``hasSpace(for:)`` was false.
  static let reservation = "IndexFile.hasSpace"

  /// Returns the failed system call behind an error of ``reservation``, and any other error unchanged.
  func cause(of error: LMDBError) -> LMDBError {
    error.function == Self.reservation ? lastFailure.withLock { $0 } ?? error : error
  }

  // MARK: Size

  /// Whether the file exceeds the maximum size, for example after the capacity was lowered. Any thread can read it.
  var isTooLarge: Bool { current.map { $0.cellCount > cellLimit.load(ordering: .relaxed) } ?? false }

  /// Returns the number of cells that the index should have for `count` more records; nil if the present one is right,
  /// or no better one is possible. Any thread can call it.
  func wantedCellCount(adding count: Int = 0) -> Int? {
    guard let index = current else { return nil }
    let limit = cellLimit.load(ordering: .relaxed)
    let recordCount = index.recordCount + count
    if index.cellCount > limit { return recordCount * 100 <= limit * IndexLayout.fullPercent ? limit : nil }
    guard recordCount * 100 > index.cellCount * IndexLayout.growthPercent else { return nil }
    let cellCount = fittingCellCount(max(index.cellCount * 2, IndexLayout.cellCount(forRecordCount: recordCount)))
    // Do not replace it for a small gain, because both files take space at the same time.
    return cellCount >= index.cellCount / 4 * 5 ? cellCount : nil
  }

  /// Returns the limit divided by a power of two, so that a file being replaced has at most half the maximum size.
  private func fittingCellCount(_ wanted: Int) -> Int {
    var count = cellLimit.load(ordering: .relaxed)
    while count / 2 >= max(wanted, IndexLayout.minimumCellCount) { count /= 2 }
    return count
  }

  // MARK: New files

  /// Deletes a file that a killed process left. Call this while no other process uses the directory.
  func deleteUnfinishedFile() { unlink(NewIndexFile.temporaryPath(of: path)) }

  /// Creates a file for a number of records while there is no index. Any thread can call it.
  ///
  /// - Throws: ``LMDBError`` if there is no space, or a limit of this process prevents it. It is also the error of
  ///   later transactions, until a file could be created.
  func create(recordCount: Int) throws(LMDBError) -> NewIndexFile {
    // Free the space of an unusable file before the new one takes its own.
    if isAbsent, isInPlace() { unlink(path) }
    return try create(cellCount: fittingCellCount(IndexLayout.cellCount(forRecordCount: recordCount)))
  }

  /// Creates a file that is to replace the index, like ``create(recordCount:)``.
  func create(cellCount: Int) throws(LMDBError) -> NewIndexFile {
    // The path may be in the directory of another store.
    guard isInPlace() else { throw LMDBError(code: .init(rawValue: ENOENT), function: "stat") }
    do throws(LMDBError) {
      let new = try NewIndexFile(path: path, cellCount: cellCount, owner: owner)
      lastFailure.withLock { $0 = nil }
      return new
    } catch {
      lastFailure.withLock { $0 = error }
      throw error
    }
  }

  /// Uses a complete new file from the present write transaction on. Returns false if that fails.
  func use(_ new: NewIndexFile, transactionID: UInt64) -> Bool {
    new.index.clearJournal(for: transactionID)
    guard isInPlace(), new.putInPlace() else { return false }
    // Do not map the file again: nothing may fail once the file is in place.
    mapping.use(new.index, inode: new.inode)
    mapping.setInUse(new.index)
    return true
  }

  /// Replaces the index with a new file of another size. Returns false if that fails.
  ///
  /// Call this in a write transaction that changes nothing, after ``begin(transactionID:)``.
  func replace(with new: NewIndexFile, transactionID: UInt64) -> Bool {
    guard let index = current, index.copyRecords(into: new.index) else { return false }
    return use(new, transactionID: transactionID)
  }
}
