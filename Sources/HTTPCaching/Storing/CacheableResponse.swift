#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// A complete response that a cache stores or shares with concurrent requests.
///
/// The cache key is not part of it: the fields of a response and the key of its request are independent.
public struct CacheableResponse: StoredResponseMetadata, Sendable {
  /// The status code; 0 for a response that is not HTTP.
  public var status: Int
  /// The header fields to keep, in order: without hop-by-hop fields and with a Date (RFC 9111, section 3.1).
  public var fields: HeaderFields
  /// The complete body; for an incomplete response (`freshness.flags.incomplete`), the bytes of its range.
  public var body: Data
  /// Date, age and lifetime, computed from the head when the response was received.
  public var freshness: FreshnessInfo
  /// The Vary key: the request fields that the response's `Vary` names (RFC 9111, section 4.1).
  public var vary: VaryKey

  /// The size of ``body``.
  public var bodyByteCount: Int { body.count }

  /// Creates a response.
  public init(status: Int, fields: HeaderFields, body: Data, freshness: FreshnessInfo, vary: VaryKey) {
    self.status = status
    self.fields = fields
    self.body = body
    self.freshness = freshness
    self.vary = vary
  }
}
