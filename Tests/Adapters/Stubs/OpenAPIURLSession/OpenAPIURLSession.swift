// The names of swift-openapi-urlsession 1.3.0 that this package must not have.

/// The transport of generated clients over `URLSession`.
public struct URLSessionTransport: Sendable {
  /// Creates a transport.
  public init() {}
}
