#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The head of a request, as far as a cache needs it.
public struct RequestHead: Sendable, Hashable {
  /// The method; case-sensitive (RFC 9110, section 9.1).
  public var method: String
  /// The absolute target URI. A fragment is ignored.
  public var url: URL
  /// The header fields.
  public var fields: HeaderFields
  /// The `User-Agent` that the transport sends if `fields` has none.
  ///
  /// It is part of the Vary key if `Vary` names the field.
  ///
  /// `nil`, the default: the transport adds none.
  public var defaultUserAgent: String?
  /// The `Accept-Language` that the transport sends if `fields` has none, like ``defaultUserAgent``.
  public var defaultLanguage: String?
  /// The `Accept-Encoding` that the transport sends if `fields` has none, like ``defaultUserAgent``.
  public var defaultAcceptEncoding: String?
  /// The content codings that the transport removes from the response; not specified by default.
  public var contentDecoding = ContentDecoding.unspecified

  /// Creates a request head; by default a `GET` without fields.
  public init(method: String = "GET", url: URL, fields: HeaderFields = HeaderFields()) {
    self.method = method
    self.url = url
    self.fields = fields
  }
}

/// The head of a response.
public struct ResponseHead: Sendable, Hashable {
  /// The status code.
  public var status: Int
  /// The header fields, without trailers (RFC 9111, section 3.1).
  public var fields: HeaderFields

  /// Creates a response head.
  public init(status: Int, fields: HeaderFields = HeaderFields()) {
    self.status = status
    self.fields = fields
  }

  /// Whether the response is a stream of events, which is for one subscriber and may never end.
  package var isEventStream: Bool { fields["Content-Type"]?.asciiLowercased().hasPrefix("text/event-stream") ?? false }
}
