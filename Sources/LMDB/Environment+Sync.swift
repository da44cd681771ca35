internal import Glibc
internal import Synchronization

extension Environment {
  /// Returns when every commit so far is safe on disk, the last one included. The last commit's meta page is otherwise
  /// synced with the next commit.
  ///
  /// Also makes good for a sync that failed before, of a commit or of this call. Waits for the disk, and for no writer.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/inputOutput`` and other reasons of the operating system. Commits stay,
  ///   and a
  ///   later call that returns says that all of them are safe. `fdatasync`, `pwrite`.
  public func synchronize() throws(LMDBError) {
    guard !isForked else { throw LMDBError(code: .forked, function: "fdatasync") }
    try beginCall("fdatasync")
    defer { endCall() }
    try synchronizeFile()
  }

  /// Syncs the data file, with all that an earlier sync may have lost. Not with liblmdb's descriptor: Linux reports a
  /// failure once to each opened file, and a commit that is under way must not miss it.
  func synchronizeFile() throws(LMDBError) {
    let failures = syncFailures.count
    if syncFailures.isLossPossible { try touchMetaPages() }
    guard fdatasync(syncDescriptor) == 0 else {
      let error = LMDBError.system("fdatasync")
      syncFailures.note()
      throw error
    }
    syncFailures.makeGood(upTo: failures)
  }

  /// Has the next sync write both meta pages, which the system may take for written. Their last byte is not in use, so
  /// this disturbs no other process that commits.
  ///
  /// Nothing else of a commit can be lost: its other pages were synced before its meta page was written.
  private func touchMetaPages() throws(LMDBError) {
    var zero: UInt8 = 0
    for page in 1...2 {
      guard pwrite(syncDescriptor, &zero, 1, off_t(page * pageByteCount - 1)) == 1 else { throw .system("pwrite") }
    }
  }
}

/// The syncs of a data file that failed, and whether what they lost has been written anew.
///
/// After a failed sync, Linux counts the pages that it could not write as clean: the next sync succeeds without them.
/// The last commit's meta page may be among them. The disk then leads to the commit before it, whose pages the next
/// commits use anew.
final class SyncFailures: Sendable {
  /// Begins with one, as another process may have met a failure before this one opened the file.
  private let failures = Atomic<Int>(1)
  private let madeGood = Atomic<Int>(0)

  var count: Int { failures.load(ordering: .sequentiallyConsistent) }

  var isLossPossible: Bool { madeGood.load(ordering: .sequentiallyConsistent) < count }

  func note() {
    failures.add(1, ordering: .sequentiallyConsistent)
  }

  /// What the first so many failures may have lost is safe.
  func makeGood(upTo count: Int) {
    madeGood.max(count, ordering: .sequentiallyConsistent)
  }
}
