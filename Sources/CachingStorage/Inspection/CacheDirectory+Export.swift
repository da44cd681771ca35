import FoundationEssentials
import HTTPCaching
import ResponseStore

/// The walk over all stored responses, and their bodies.
extension CacheDirectory {
  /// Calls `body` with each stored HTTP response of a host until it returns false.
  ///
  /// Holds a bounded number of entries without bodies, and no transaction while `body` runs. A response that is evicted
  /// or replaced during the walk may be missing.
  ///
  /// - Parameters:
  ///   - host: The canonical host; nil for all hosts.
  ///   - progress: Receives the number of examined entries and their total, periodically.
  /// - Throws: The error of `body`.
  /// - Complexity: O(entries). Each body is read once, to compare the checksum.
  package func forEachResponse<E: Error>(
    host: String?, progress: (_ done: Int, _ total: Int) -> Void,
    _ body: (Entry, StoredResponse) throws(E) -> Bool
  ) throws(E) {
    let total = entryCount
    var done = 0
    for info in store.entries() {
      done += 1
      progress(done, total)
      guard info.status > 0, host == nil || info.key.host == host,
        let response = store.inspect(info.key, where: { $0 == info.vary })
      else { continue }
      guard try body(Entry(info), response) else { return }
    }
  }

  /// Whether a read has found a record with a wrong checksum since the directory was opened.
  package var hasFoundCorruption: Bool { store.statistics.corruptRecords > 0 }

  /// Calls `body` with the pieces of a response's body in their order.
  ///
  /// - Returns: False if the response was removed, replaced or evicted before its last piece was read.
  /// - Throws: The error of `body`.
  package func forEachPiece<E: Error>(of response: StoredResponse, _ body: (Data) throws(E) -> Void) throws(E) -> Bool {
    guard let stored = response.storedBody else {
      try body(response.body)
      return true
    }
    var start = 0
    while start < stored.byteCount {
      let end = min(start + Self.pieceByteCount, stored.byteCount)
      guard let piece = stored.read(start..<end) else { return false }
      try body(piece)
      start = end
    }
    return true
  }

  private static let pieceByteCount = 256 << 10
}
