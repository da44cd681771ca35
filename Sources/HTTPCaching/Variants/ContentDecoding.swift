/// The content codings that a transport removes from responses before their receiver gets them.
///
/// A cache can have several transports. The stored form of a response is part of its ``VaryKey``, so that each request
/// gets the form that its own transport would deliver.
public enum ContentDecoding: Sendable, Hashable {
  /// Not known. The request matches stored responses in each form.
  case unspecified
  /// None: content is delivered as received.
  case none
  /// `gzip` (or `x-gzip`) and `deflate`, if the content has no second coding.
  case gzipAndDeflate
  /// All that the origin may send.
  case all

  /// Returns whether content with these codings, the value of `Content-Encoding`, is decoded.
  func decodes(_ codings: String) -> Bool {
    switch self {
    case .unspecified, .none: false
    case .gzipAndDeflate: codings == "gzip" || codings == "x-gzip" || codings == "deflate"
    case .all: true
    }
  }
}

extension RequestHead {
  /// Whether the request's transport delivers content in this form.
  ///
  /// - Parameter fields: The fields of the response, whose `Content-Encoding` names the codings.
  package func delivers(contentOf fields: HeaderFields, isDecoded: Bool) -> Bool {
    guard contentDecoding != .unspecified, let codings = fields.contentCodings else { return true }
    return contentDecoding.decodes(codings) == isDecoded
  }
}

extension HeaderFields {
  /// The codings of the content in lowercase; nil if it has none.
  var contentCodings: String? {
    guard contains("Content-Encoding") else { return nil }
    let codings = values(of: "Content-Encoding").flatMap(\.listElements)
    return codings.isEmpty ? nil : codings.joined(separator: ",")
  }
}
