import FoundationEssentials
import LMDB
import Synchronization

/// What a check of a whole store has found.
public struct StoreVerification: Sendable {
  /// A sentence for each thing that is wrong; empty for a sound store. After the first thousand the rest is only counted.
  public internal(set) var violations: [String] = []
  /// The entries that a lookup can find.
  public internal(set) var entryCount = 0
  /// The bytes of their bodies.
  public internal(set) var bodyByteCount = 0
  /// Whether the counts were compared with the sums over all records. False when others wrote meanwhile: every record was
  /// checked, and the sums belong to no single moment.
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
  /// Checks the whole store, after writing what is queued (in a store that is only looked at nothing is): every record and body
  /// against its checksum, every table against the others, the counters against the sums, and the files against the capacity.
  ///
  /// Reads each record once, in the order on disk and ahead of itself. Memory does not grow with the number of entries. While
  /// others write, it renews its snapshot once a second, so that it does not keep their freed pages from being used.
  ///
  /// - Parameter progress: Gets the records checked so far, and how many there are, now and then.
  /// - Complexity: O(bytes stored).
  public func verify(progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }) -> StoreVerification {
    verify(maximumSnapshotAge: .seconds(1), progress: progress)
  }

  /// The violations that ``verify(progress:)`` finds.
  public func checkInvariants() -> [String] { verify().violations }

  /// Whether a lower capacity is being applied, until when the directory may take more: by this process, or maybe by another.
  private var isShrinking: Bool {
    guard limits.withLock({ $0.isFileLong }) else { return false }
    return options.opensExistingOnly || maintenance.withLock { $0.wantsSmallerFile }
  }

  /// - Parameter maximumSnapshotAge: How long one snapshot is used after others have committed.
  func verify(maximumSnapshotAge: Duration, progress: (Int, Int) -> Void = { _, _ in }) -> StoreVerification {
    var result = StoreVerification()
    guard isUsable else {
      result.report("The store was given up: \(directory)")
      return result
    }
    // To write what others removed would wait for who writes.
    if !options.opensExistingOnly {
      // What was lost is for a flush to tell; here it counts what is stored.
      do throws(StoreError) { try flush(since: Atomic(acceptedNumber)) } catch { result.report("\(error)") }
    }
    do throws(LMDBError) {
      var check = StoreCheck(store: self, maximumSnapshotAge: maximumSnapshotAge, result: result)
      result = try check.run(progress: progress)
    } catch {
      result.report("Reading failed: \(error)")
    }
    let mapByteCount = file.environment.information.mapByteCount
    let usedByteCount = (file.environment.information.lastPageNumber + 1) * file.pageByteCount
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
