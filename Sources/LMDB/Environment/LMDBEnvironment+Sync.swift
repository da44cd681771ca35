internal import Glibc
internal import Synchronization
internal import SystemFiles

extension LMDBEnvironment {
  /// Waits until every commit so far is durable.
  ///
  /// Without this call, the last commit's meta page is synced with the next commit. Also repairs the effects of an
  /// earlier failed sync. Waits for the disk, but for no writer.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/inputOutput`` and other errors of the operating system. The commits
  ///   stay, and a later call that succeeds makes all of them durable. `fdatasync`, `pwrite`.
  public func synchronize() throws(LMDBError) {
    guard !isForked else { throw LMDBError(code: .forked, function: "fdatasync") }
    try beginCall("fdatasync")
    defer { endCall() }
    try synchronizeFile()
  }

  /// Syncs the data file, including writes that an earlier failed sync may have lost.
  ///
  /// Uses its own descriptor: Linux reports a failure once for each open file, and a concurrent commit must not miss
  /// it.
  func synchronizeFile() throws(LMDBError) {
    let failures = syncFailures.count
    if syncFailures.isLossPossible { try touchMetaPages() }
    guard fdatasync(dataFile.number) == 0 else {
      let error = LMDBError.system("fdatasync")
      syncFailures.recordFailure()
      throw error
    }
    syncFailures.recordRepair(upTo: failures)
  }

  /// Writes to both meta pages, so that the next sync includes them even if the kernel considers them written.
  ///
  /// Changes only their last byte, which LMDB does not use, so concurrent commits of other processes stay intact.
  /// Other pages of a commit cannot be lost: they were synced before its meta page was written.
  private func touchMetaPages() throws(LMDBError) {
    var zero: UInt8 = 0
    for page in 1...2 {
      let offset = off_t(page * pageByteCount - 1)
      let count = WriteSignals.suppressing { pwrite(dataFile.number, &zero, 1, offset) }
      guard count == 1 else { throw .system("pwrite") }
    }
  }
}

/// Counts the failed syncs of a data file, and whether their lost writes were repeated.
///
/// After a failed sync, Linux marks the pages that it could not write as clean, and the next sync succeeds without
/// them. The last commit's meta page may be among them. The disk then contains the meta page of the previous commit,
/// whose pages the next commits reuse.
final class SyncFailures: Sendable {
  /// Starts at 1, because another process may have met a failure before this one opened the file.
  private let failures = Atomic<Int>(1)
  /// The number of failures whose lost writes were repeated and are durable.
  private let repaired = Atomic<Int>(0)

  var count: Int { failures.load(ordering: .sequentiallyConsistent) }

  var isLossPossible: Bool { repaired.load(ordering: .sequentiallyConsistent) < count }

  func recordFailure() {
    failures.add(1, ordering: .sequentiallyConsistent)
  }

  /// Records that the lost writes of the first `count` failures are durable.
  func recordRepair(upTo count: Int) {
    repaired.max(count, ordering: .sequentiallyConsistent)
  }
}
