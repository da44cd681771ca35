import CacheModel
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
    /// The content of the query, as ``Entry/queryContent``; nil for other requests.
    package let queryContent: (digest: String, byteCount: Int)?
  }

  /// Returns the stored variants of a request's URL: first the selected one, then from new to old.
  ///
  /// The URL may contain any characters, because it is compared as text. If no response is stored under it, those of the
  /// URLs are returned that are equivalent to it by the No-Vary-Search of its path.
  ///
  /// - Parameters:
  ///   - url: The absolute URL.
  ///   - method: The method of the request for which the responses were stored.
  ///   - content: The content of the request, if it is a query: QUERY, or POST.
  ///   - partition: The partition of the cache key.
  ///   - fields: The header fields of the request that selects a variant.
  ///   - options: The options of the cache that selects it.
  /// - Returns: Nil if the text cannot be the URL of a stored response.
  /// - Complexity: O(log entries) for each variant. Its body is read once, to compare the checksum.
  package func variants(
    of url: String, method: String, content: Data? = nil, partition: String, selectedBy fields: HeaderFields,
    options: CachingOptions
  ) -> [Variant]? {
    var namesUser = false
    guard var key = RequestKey(urlString: url, method: method, partition: partition, hasUser: &namesUser) else {
      return nil
    }
    let head = URL(string: url).map { RequestHead(method: method, url: $0, fields: fields).withFoundationDefaults }
    if let content {
      guard let head, let query = queryKey(head, content, partition: partition, options: options) else { return [] }
      key = query
    } else if store.inspectVariants(of: key).isEmpty, let head,
      let equivalent = equivalentKey(head, partition: partition, options: options)
    {
      key = equivalent
    }
    let selected = head.flatMap { head in
      store.inspect(key) { $0.matches(head, options: options, credentialDigest: store.credentialDigest) }
    }
    let variants = store.inspectVariants(of: key).map { response in
      Variant(
        response: response, isSelected: selected.map { $0.rowID == response.rowID } ?? false,
        queryContent: key.queryContent)
    }
    return variants.sorted { one, other in
      one.isSelected != other.isSelected ? one.isSelected : one.response.storedAt > other.response.storedAt
    }
  }
}
