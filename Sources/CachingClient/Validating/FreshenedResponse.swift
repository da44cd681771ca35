import HTTPCaching

/// A stored response with the fields and freshness that a 304 updated (RFC 9111 section 4.3.4).
struct FreshenedResponse<Base: StoredResponseMetadata>: StoredResponseMetadata {
  let base: Base
  let fields: HeaderFields
  let freshness: FreshnessInfo

  var status: Int { base.status }
  var bodyByteCount: Int { base.bodyByteCount }
}
