// The names of vapor 4.122.0 that this package must not have.

/// The environment of the server.
public struct Environment: Sendable {
  /// Creates an environment.
  public init() {}
}

/// A request of the server's own HTTP client.
public struct ClientRequest: Sendable {
  /// Creates a request.
  public init() {}
}

/// A response to the server's own HTTP client.
public struct ClientResponse: Sendable {
  /// Creates a response.
  public init() {}
}
