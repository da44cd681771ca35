/// The names of the fields that belong to one connection, one user or one request, in lowercase.
package enum UnsharedFields {
  /// Fields for the next hop only, or for a proxy (RFC 9111, section 3.1; RFC 9110, section 7.6.1).
  package static let ofConnection = [
    "connection", "keep-alive", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
  ]

  /// Fields of a request that identify its user.
  package static let ofUser = ["authorization", "proxy-authorization", "cookie"]

  /// Fields of a response for the user who sent the request (RFC 9111, section 7.3).
  package static let forUser = ["set-cookie", "set-cookie2"]

  /// Fields of a request with ranges, conditions and cache directives, which apply to one request only.
  package static let ofRequest = [
    "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "cache-control",
    "pragma",
  ]
}

extension HeaderFields {
  /// Whether there is a field with one of some names.
  package func contains(anyOf names: [String]) -> Bool { names.contains(where: contains) }
}
