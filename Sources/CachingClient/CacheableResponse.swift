public import FoundationEssentials
public import HTTPCaching

/// A storable response, which is proposed to the storage and shared with the followers of its fetch.
///
/// Followers do not read the response from the storage. Otherwise a full or disabled storage would make each of them
/// fetch.
public struct CacheableResponse: StoredResponseMetadata, Sendable {
  /// The status.
  public var status: Int
  /// The fields, without hop-by-hop fields and with a Date (RFC 9111 section 3.1).
  public var fields: HTTPFields
  /// The complete body; for an incomplete response (`freshness.flags.incomplete`), the bytes of its range.
  public var body: Data
  /// The freshness, computed from the head for later decisions.
  public var freshness: FreshnessInfo
  /// The Vary key of the response.
  public var vary: VaryKey

  /// The size of ``body``.
  public var bodyByteCount: Int { body.count }
}

/// A stored response with the fields and freshness that a 304 updated (RFC 9111 section 4.3.4).
struct FreshenedResponse<Base: StoredResponseMetadata>: StoredResponseMetadata {
  let base: Base
  let fields: HTTPFields
  let freshness: FreshnessInfo

  var status: Int { base.status }
  var bodyByteCount: Int { base.bodyByteCount }
}
