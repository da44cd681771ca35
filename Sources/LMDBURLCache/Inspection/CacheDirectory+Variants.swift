import CachingClient
import Foundation
import HTTPCaching
import ResponseStore

/// The stored responses of one URL.
extension CacheDirectory {
  /// A stored response of a URL, without its body.
  package struct Variant: Sendable {
    /// The response.
    package let response: StoredResponse
    /// Whether a lookup for the request would select this variant.
    package let isSelected: Bool
  }

  /// Returns the stored variants of a request's URL: first the selected one, then from new to old.
  ///
  /// The URL may contain any characters, because it is compared as text.
  ///
  /// - Parameters:
  ///   - url: The absolute URL.
  ///   - method: The method of the request for which the responses were stored.
  ///   - partition: The partition of the cache key.
  ///   - fields: The header fields of the request that selects a variant.
  ///   - options: The options of the cache that selects it.
  /// - Returns: Nil if the text cannot be the URL of a stored response.
  /// - Complexity: O(log entries) for each variant. Its body is read once, to compare the checksum.
  package func variants(
    of url: String, method: String, partition: String, selectedBy fields: HTTPFields, options: CachingOptions
  ) -> [Variant]? {
    var namesUser = false
    guard let key = RequestKey(urlString: url, method: method, partition: partition, hasUser: &namesUser) else {
      return nil
    }
    let selected = URL(string: url).flatMap { url in
      let head = RequestHead(method: method, url: url, fields: fields).withFoundationDefaults
      return store.inspect(key) { $0.matches(head, options: options, credentialDigest: store.credentialDigest) }
    }
    let variants = store.inspectVariants(of: key).map { response in
      Variant(response: response, isSelected: selected.map { $0.rowID == response.rowID } ?? false)
    }
    return variants.sorted { one, other in
      one.isSelected != other.isSelected ? one.isSelected : one.response.storedAt > other.response.storedAt
    }
  }

  /// Calls `body` with each stored HTTP response of a host until it returns false.
  ///
  /// Holds a bounded number of entries without bodies, and no transaction while `body` runs. A response that is evicted
  /// or replaced during the walk may be missing.
  ///
  /// - Parameters:
  ///   - host: The host in lowercase; nil for all hosts.
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
