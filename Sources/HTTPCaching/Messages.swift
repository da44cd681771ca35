#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The head of a request: what a cache decides on.
public struct RequestHead: Sendable, Hashable {
  /// The method, case-sensitive (RFC 9110, 9.1).
  public var method: String
  /// The absolute target URI. A fragment plays no part.
  public var url: URL
  /// The header fields.
  public var fields: HTTPFields
  /// What stands for the `User-Agent` that the transport sends where `fields` has none: responses that vary by it are kept
  /// apart by this. `nil`, the default: the transport adds none.
  public var defaultUserAgent: String?

  /// A request head; `GET` without fields unless told otherwise.
  public init(method: String = "GET", url: URL, fields: HTTPFields = HTTPFields()) {
    self.method = method
    self.url = url
    self.fields = fields
  }
}

/// The head of a response.
public struct ResponseHead: Sendable, Hashable {
  /// The status code.
  public var status: Int
  /// The header fields, trailers not among them (RFC 9111, 3.1).
  public var fields: HTTPFields

  /// A response head.
  public init(status: Int, fields: HTTPFields = HTTPFields()) {
    self.status = status
    self.fields = fields
  }
}

/// What a decision reads of a stored response. `facts`, `status` and `bodyByteCount` should be cheap; `fields` may be
/// decoded on demand, a plain fresh hit never asks for it.
public protocol StoredResponseView {
  /// The stored status code; 206 for a stored part.
  var status: Int { get }
  /// What was computed when the response was stored.
  var facts: FreshnessFacts { get }
  /// The stored header fields.
  var fields: HTTPFields { get }
  /// The number of stored body bytes: of the part, if `status` is 206.
  var bodyByteCount: Int { get }
}
