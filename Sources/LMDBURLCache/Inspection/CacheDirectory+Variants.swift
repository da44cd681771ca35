import CacheModel
import CachingClient
import Foundation
import HTTPCaching
import ResponseStore

/// The stored responses of one URL.
extension CacheDirectory {
  /// The maximum number of responses for single users that
  /// ``variants(of:method:content:partition:selectedBy:options:)`` returns: 128.
  package static let maximumUserCount = 128

  /// Returns the keys of the newest responses to GET requests for a URL that are for one user each.
  private func keysOfUsers(of key: RequestKey) -> [RequestKey] {
    guard !store.inspectVariants(of: key.urlSpace).isEmpty else { return [] }
    let entries = store.entries(coveredBy: .resource(key.bytes)).filter { $0.isCovered && $0.key.isOfUser }
    return entries.sorted { $0.storedAt > $1.storedAt }.prefix(Self.maximumUserCount).map(\.key)
  }

  /// A stored response of a URL, without its body.
  package struct Variant: Sendable {
    package let response: StoredResponse
    /// Whether a lookup for the request would select this variant.
    package let isSelected: Bool
    /// The content of the query, as ``Entry/queryContent``; nil for other requests.
    package let queryContent: (digest: String, byteCount: Int)?
  }

  /// Returns the stored variants of a request's URL: first the selected one, then from new to old.
  ///
  /// The URL may contain any characters, because it is compared as text. If no response is stored under it, those of
  /// the URLs are returned that are equivalent to it by the No-Vary-Search of its path.
  ///
  /// - Parameters:
  ///   - url: The absolute URL.
  ///   - method: The method of the request for which the responses were stored.
  ///   - content: The content of the request, if it is a query: QUERY, or POST.
  ///   - partition: The partition of the cache key.
  ///   - fields: The header fields of the request that selects a variant.
  ///   - options: The options of the cache that selects it.
  /// - Returns: Nil if the text cannot be the URL of a stored response.
  /// Of a URL with responses for single users, the newest ``maximumUserCount`` of these are returned.
  ///
  /// - Complexity: O(log entries) for each variant. Its body is read once, to compare the checksum. If there are
  ///   responses for single users, O(entries).
  package func variants(
    of url: String, method: String, content: Data? = nil, partition: String, selectedBy fields: HeaderFields,
    options: CachingOptions
  ) -> [Variant]? {
    var namesUser = false
    guard let key = RequestKey(urlString: url, method: method, partition: partition, hasUser: &namesUser) else {
      return nil
    }
    let head = URL(string: url).map { RequestHead(method: method, url: $0, fields: fields).withFoundationDefaults }
    var keys = [key]
    if let head, content != nil || method == "GET" {
      keys = self.keys(of: head, content, partition: partition, options: options)
    } else if content != nil {
      return []
    }
    var selected: StoredResponse?
    if let head {
      for key in keys where selected == nil {
        selected = store.inspect(key) { $0.matches(head, options: options, credentialDigest: store.credentialDigest) }
      }
    }
    // The responses of an equivalent URL are those of this one only if it has none of its own.
    let ownKeys = content == nil ? [key] + keysOfUsers(of: key) : keys
    let shown = ownKeys.contains { !store.inspectVariants(of: $0).isEmpty } ? ownKeys : keys
    let variants = Set(shown).flatMap { key in
      store.inspectVariants(of: key).map { response in
        Variant(
          response: response, isSelected: selected.map { $0.rowID == response.rowID } ?? false,
          queryContent: key.queryContent)
      }
    }
    return variants.sorted { one, other in
      one.isSelected != other.isSelected ? one.isSelected : one.response.storedAt > other.response.storedAt
    }
  }
}
