import FoundationEssentials
import LMDB
import Synchronization

/// The result of a check of a whole store.
public struct StoreVerification: Sendable {
  /// A sentence for each violation; empty for a sound store. After the first thousand the rest is only counted.
  public internal(set) var violations: [String] = []
  /// The entries that a lookup can find.
  public internal(set) var entryCount = 0
  /// The bytes of their bodies.
  public internal(set) var bodyByteCount = 0
  /// Whether the counters were compared with the sums over all records. False if others wrote meanwhile: every record
  /// was checked, but the sums belong to no single snapshot.
  public internal(set) var hasComparedSums = true

  private static let maximumViolationCount = 1000
  private var otherViolationCount = 0

  mutating func report(_ violation: String) {
    if violations.count < Self.maximumViolationCount {
      violations.append(violation)
    } else {
      otherViolationCount += 1
    }
  }

  mutating func reportRest() {
    if otherViolationCount > 0 { violations.append("There are \(otherViolationCount) violations more") }
  }
}

extension ResponseStore {
  /// Checks every record and body against its checksum, every table against the others, the counters against the sums,
  /// and the files against the capacity.
  ///
  /// Writes the queue first, unless the store is only inspected. Memory does not grow with the number of entries. While
  /// others write, the snapshot is renewed once a second, so that freed pages can be reused.
  ///
  /// - Parameter progress: Receives the number of checked records, and their total, now and then.
  /// - Complexity: O(bytes stored).
  public func verify(progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }) -> StoreVerification {
    verify(maximumSnapshotAge: .seconds(1), progress: progress)
  }

  /// The violations that ``verify(progress:)`` finds.
  public func checkInvariants() -> [String] { verify().violations }

  /// Whether this process, or maybe another, is applying a lower capacity. The directory may take more until that is
  /// done.
  private var isShrinking: Bool {
    space.budget.isFileOversized && (context.options.opensExistingOnly || space.isFileToShrink)
  }

  /// - Parameter maximumSnapshotAge: How long one snapshot is used after others have committed.
  func verify(maximumSnapshotAge: Duration, progress: (Int, Int) -> Void = { _, _ in }) -> StoreVerification {
    var result = StoreVerification()
    guard context.isUsable else {
      result.report("The store failed: \(directory)")
      return result
    }
    // An inspection must not wait for a writer.
    if !context.options.opensExistingOnly {
      // Earlier losses are for other flushes to report.
      do throws(StoreError) { try flush(since: Atomic(acceptedNumber)) } catch { result.report("\(error)") }
    }
    do throws(LMDBError) {
      var check = StoreCheck(context, purger: purger, maximumSnapshotAge: maximumSnapshotAge, result: result)
      result = try check.run(progress: progress)
    } catch {
      result.report("Reading failed: \(error)")
    }
    let database = context.database
    let mapByteCount = database.environment.information.mapByteCount
    let usedByteCount = (database.environment.information.lastPageNumber + 1) * database.pageByteCount
    if usedByteCount > mapByteCount {
      result.report("data.mdb has \(usedByteCount) bytes in a map of \(mapByteCount)")
    }
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacityByteCount)
    if diskByteCount > bound, !isShrinking {
      result.report("The directory takes \(diskByteCount) bytes of at most \(bound)")
    }
    result.reportRest()
    return result
  }
}
