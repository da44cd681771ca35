// The names of hummingbird 2.26.0 that this package must not have.

/// The variables of the process.
public struct Environment: Sendable {
  /// Creates an environment.
  public init() {}
}

/// The body of a request that the server receives.
public struct RequestBody: Sendable {
  /// Creates a body.
  public init() {}
}

/// The body of a response that the server sends.
public struct ResponseBody: Sendable {
  /// Creates a body.
  public init() {}
}
