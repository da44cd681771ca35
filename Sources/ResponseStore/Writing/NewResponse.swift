import FoundationEssentials
import HTTPCaching

/// A response for the store.
///
/// The store keeps what it is given and decides nothing: whether a response may be stored, and what its
/// ``FreshnessInfo`` are, is `HTTPCaching`'s to say.
public struct NewResponse: Sendable {
  /// The cache key.
  public var key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public var status: Int
  /// The header fields to keep, in order.
  public var fields: HTTPFields
  /// The body.
  public var body: Data
  /// Date, age and lifetime, computed when the response was received.
  public var freshness: FreshnessInfo
  /// The request fields by which this variant was chosen (RFC 9111, section 4.1).
  public var vary: VaryKey
  /// Bytes of the layer above, kept with the head and given back as they are. Nil by default.
  public var attachment: [UInt8]?

  /// Creates a response for the store.
  public init(
    key: RequestKey, status: Int, fields: HTTPFields, body: Data, freshness: FreshnessInfo, vary: VaryKey,
    attachment: [UInt8]? = nil
  ) {
    self.key = key
    self.status = status
    self.fields = fields
    self.body = body
    self.freshness = freshness
    self.vary = vary
    self.attachment = attachment
  }
}
