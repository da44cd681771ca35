/// The decision for a request with a stored response. Ages are whole seconds.
public enum ReuseDecision: Sendable, Hashable {
  /// Serve the stored response without contacting the origin.
  case serve(age: Int, Rule)
  /// Serve the stored response although it is stale.
  ///
  /// If `revalidateInBackground`, also validate the stored response at the origin.
  case serveStale(age: Int, revalidateInBackground: Bool, Rule)
  /// Send `request.conditional(on:)` with these fields.
  ///
  /// If the origin fails, the stored response may be served as `staleOnError` permits. Pass a 304 to `Freshening`, then
  /// call `Reuse.decideResponse`.
  case revalidate(conditional: HeaderFields, staleOnError: StaleOnError, Rule)
  /// Send the unchanged request. If the origin fails, the stored response may be served as `staleOnError` permits.
  case fetch(staleOnError: StaleOnError, Rule)
  /// Respond with 304: the client's own condition shows that it has the stored response.
  case notModified(age: Int, revalidateInBackground: Bool, Rule)
  /// Respond with 206 and this range of the complete representation.
  case partial(ByteRange, age: Int, revalidateInBackground: Bool, Rule)
  /// Respond with 416: the range is outside the stored representation, which has this length.
  case unsatisfiableRange(completeLength: Int, age: Int, Rule)
  /// Request the missing bytes of the incomplete response, with `request.conditional(on:)` and these fields.
  ///
  /// The fields are `Range` and `If-Range`. Combine a 206 with `PartialContent.combine`, and serve the result. A 200
  /// replaces the stored response.
  case fetchMissingRange(fields: HeaderFields, Rule)
  /// Respond with 504: the network must not be used.
  case gatewayTimeout(Rule)
}

/// The decision for a request without a usable stored response.
public enum MissDecision: Sendable, Hashable {
  /// Send the request. The response may be stored if `Storability` permits it.
  case fetch(Rule)
  /// Respond with 504: the network must not be used.
  case gatewayTimeout(Rule)
  /// Send the request without the cache, which does not handle such methods or requests.
  case bypass(Rule)
}
