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
    of url: String, method: String, partition: String, selectedBy fields: HeaderFields, options: CachingOptions
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
}
