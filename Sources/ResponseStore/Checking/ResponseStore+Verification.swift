import FoundationEssentials
import LMDB
import Synchronization

/// The result of a check of a whole store.
public struct StoreVerification: Sendable {
  /// A sentence for each violation; empty for a sound store. Violations after the first thousand are only counted.
  public internal(set) var violations: [String] = []
  /// The number of entries that a lookup can find.
  public internal(set) var entryCount = 0
  /// The size of their bodies in bytes.
  public internal(set) var bodyByteCount = 0
  /// Whether the counters were compared with the sums over all records.
  ///
  /// False if responses were stored or deleted during the check. Every record was checked, but the sums belong to no
  /// single snapshot.
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
  /// Checks the checksums of all records and bodies, and whether tables, counters, index and file sizes agree.
  ///
  /// Writes the queue first, unless the store is only inspected. Memory use does not depend on the number of entries.
  /// During writes by other threads or processes, the snapshot is renewed once a second, so that freed pages can be
  /// reused.
  ///
  /// - Parameter progress: Receives the number of checked records and their total, periodically.
  /// - Complexity: O(bytes stored).
  public func verify(progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }) -> StoreVerification {
    verify(maximumSnapshotAge: .seconds(1), progress: progress)
  }

  /// Returns the violations that ``verify(progress:)`` finds.
  public func checkInvariants() -> [String] { verify().violations }

  /// Whether this process, or possibly another one, is applying a lower capacity.
  ///
  /// Until it is applied, the directory may exceed the capacity + 10%.
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
      // Do not report earlier losses here; other flushes report them.
      do throws(StoreError) { try flush(since: Atomic(acceptedNumber)) } catch { result.report("\(error)") }
    }
    do throws(LMDBError) {
      var check = StoreCheck(context, maximumSnapshotAge: maximumSnapshotAge, result: result)
      result = try check.run(progress: progress)
    } catch {
      result.report("Reading failed: \(error)")
    }
    compareSizes(&result)
    result.reportRest()
    return result
  }

  /// Compares sizes with the capacity. Another process may set a capacity meanwhile: the highest one counts.
  private func compareSizes(_ result: inout StoreVerification) {
    let (database, information) = (context.database, context.database.environment.information)
    let before = max(capacityByteCount, space.capacityByteCount)
    let (diskByteCount, usedByteCount) = (diskByteCount, (information.lastPageNumber + 1) * database.pageByteCount)
    let capacity = max(before, capacityByteCount)
    let mapByteCount = max(
      information.mapByteCount,
      StorageFormat.mapByteCount(capacityByteCount: capacity, pageByteCount: database.pageByteCount))
    if usedByteCount > mapByteCount {
      result.report("data.mdb has \(usedByteCount) bytes in a map of \(mapByteCount)")
    }
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacity)
    if diskByteCount > bound, !isShrinking, !space.budget.isCapacityTooLowForFiles {
      result.report("The directory takes \(diskByteCount) bytes of at most \(bound)")
    }
  }
}
