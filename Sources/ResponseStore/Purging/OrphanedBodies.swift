import Glibc

/// The bodies without a record header that this process may delete: abandoned writes, and bodies too large to delete at
/// once.
///
/// A body ID is never used again, so any process can delete the chunks at any later time.
final class OrphanedBodies: Sendable {
  private let bodyIDs = Monitor<Set<UInt64>>([])

  var isEmpty: Bool { bodyIDs.withLock { $0.isEmpty } }

  /// One of the bodies; nil if there is none.
  var first: UInt64? { bodyIDs.withLock { $0.first } }

  func note(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.insert(bodyID) }
  }

  func forget(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.remove(bodyID) }
  }
}

/// A row of `meta` for a body that is written or deleted over several transactions.
struct UnfinishedBody: Sendable, Equatable {
  var bodyID: UInt64
  /// The process that writes the body; 0 for a body that is being deleted, which any process may continue.
  var processID: Int32

  static func encode(processID: Int32) -> [UInt8] {
    var writer = ByteWriter()
    writer.append(UInt64(processID))
    return writer.bytes
  }

  /// Whether no process writes the body. False for a body that this process began, which may be in progress.
  var isAbandoned: Bool {
    processID <= 0 || (kill(processID, 0) != 0 && errno == ESRCH)
  }
}
