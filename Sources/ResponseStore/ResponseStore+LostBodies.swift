import Glibc
import LMDB

/// A row of `meta` for a body that is being written or removed over several transactions.
struct PartialBody: Sendable, Equatable {
  var bodyID: UInt64
  /// The process that writes it; 0 for one that is being removed, which is everybody's.
  var processID: Int32

  static func encode(processID: Int32) -> [UInt8] {
    var writer = ByteWriter()
    writer.append(UInt64(processID))
    return writer.bytes
  }

  /// Whether nobody writes it any more. This process's own may be under way.
  var isLost: Bool {
    processID <= 0 || (kill(processID, 0) != 0 && errno == ESRCH)
  }
}

/// Pieces of bodies that no head leads to: what a failed or killed writer left behind, and large bodies that were removed.
extension ResponseStore {
  /// Notes the bodies that nobody writes: while opening alone all of them.
  func notePartialBodies(isAlone: Bool) throws(LMDBError) {
    let partial = try file.environment.read { (transaction) throws(LMDBError) in
      try partialBodies(in: transaction)
    }
    for body in partial where isAlone || body.isLost { file.lostBodies.note(body.bodyID) }
  }

  /// Removes chunks of one lost body; false if there is none.
  func sweepLostBodies() throws(LMDBError) -> Bool {
    guard let bodyID = file.lostBodies.first else { return false }
    let isGone = try commit { (transaction) throws(LMDBError) -> Bool in
      // Nothing to do for one whose head was committed after all, or still stands.
      guard try file.meta.contains(MetaKey.partial(bodyID), in: transaction) else { return true }
      let pageCount = try file.counters(in: transaction).freeablePageCount
      guard try file.removeChunks(of: bodyID, pageCount: pageCount, in: transaction) else { return false }
      return try file.meta.remove(MetaKey.partial(bodyID), in: transaction)
    }
    if isGone { file.lostBodies.forget(bodyID) }
    return true
  }

  func partialBodies<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [PartialBody] {
    var bodies: [PartialBody] = []
    try file.meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.partialPrefix)
      while more {
        guard let bodyID = MetaKey.number(in: try cursor.checkedKey(), after: MetaKey.partialPrefix) else { return }
        let processID = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> UInt64 in
            var reader = ByteReader(bytes)
            return reader.read(UInt64.self) ?? 0
          }
        }
        bodies.append(PartialBody(bodyID: bodyID, processID: Int32(truncatingIfNeeded: processID)))
        more = try cursor.next()
      }
    }
    return bodies
  }
}
