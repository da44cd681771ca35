/// What to do with a request for which a response is stored. Ages are whole seconds.
public enum ReuseDecision: Sendable, Hashable {
  /// Answer with the stored response, without asking anybody.
  case serve(age: Int, Rule)
  /// Answer with the stored response though it is stale; if `revalidateInBackground`, ask the origin meanwhile with
  /// `request.validating(_:)`.
  case serveStale(age: Int, revalidateInBackground: Bool, Rule)
  /// Ask the origin with `request.conditional(on:)` made of these fields; if it fails, `staleOnError` says whether the
  /// stored response may stand in. A 304 goes to `Freshening`, then `Reuse.answer`.
  case revalidate(conditional: HTTPFields, staleOnError: StaleOnError, Rule)
  /// Ask the origin with the request as it is; if it fails, `staleOnError` says whether the stored response may stand in.
  case fetch(staleOnError: StaleOnError, Rule)
  /// Answer 304: the client's own condition says that it has what is stored.
  case notModified(age: Int, revalidateInBackground: Bool, Rule)
  /// Answer 206 with this part of the whole representation.
  case partial(ByteRange, age: Int, revalidateInBackground: Bool, Rule)
  /// Answer 416: the stored representation is this long, and the range lies outside it.
  case unsatisfiableRange(completeLength: Int, age: Int, Rule)
  /// Ask the origin for the bytes that the stored part lacks, with `request.conditional(on:)` made of these fields
  /// (`Range`, `If-Range`). A 206 is combined with `PartialContent.combine`, whose result answers the request; a 200 replaces.
  case complete(fields: HTTPFields, Rule)
  /// Answer 504: the network must not be asked.
  case gatewayTimeout(Rule)
}

/// What to do with a request for which nothing usable is stored.
public enum MissDecision: Sendable, Hashable {
  /// Ask the origin; the answer may be stored as `Storability` says.
  case fetch(Rule)
  /// Answer 504: the network must not be asked.
  case gatewayTimeout(Rule)
  /// Ask the origin, and leave the cache out: not a method or request a cache answers.
  case bypass(Rule)
}
