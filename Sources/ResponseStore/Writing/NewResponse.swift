import FoundationEssentials
import HTTPCaching

/// A response to store.
///
/// The store does not decide whether a response may be stored, and does not compute its ``FreshnessInfo``.
/// `HTTPCaching` does both.
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
  /// The Vary key: the request fields that the response's `Vary` names (RFC 9111, section 4.1).
  public var vary: VaryKey
  /// Bytes of the caller that are stored with the response and returned unchanged. Nil by default.
  public var attachment: [UInt8]?

  /// Creates a response to store.
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
