/// The properties of a stored response that a decision reads.
///
/// `freshness`, `status` and `bodyByteCount` should be cheap. `fields` can be decoded on demand; a plain fresh hit
/// never reads it.
public protocol StoredResponseMetadata {
  /// The stored status code; 206 for an incomplete response.
  var status: Int { get }
  /// The freshness, computed when the response was stored.
  var freshness: FreshnessInfo { get }
  /// The stored header fields.
  var fields: HeaderFields { get }
  /// The number of stored body bytes; of the part if `status` is 206.
  var bodyByteCount: Int { get }
}
