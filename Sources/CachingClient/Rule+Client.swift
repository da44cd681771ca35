public import HTTPCaching

/// The rules that apply while the caching client fetches and stores; HTTPCaching has the rules of the decisions.
extension Rule {
  /// The body ended early, or its Content-Length is malformed or does not match.
  public static let incompleteBody = Rule(
    "incomplete-body", "9111 3.3", "the body is incomplete or does not match its length")
  /// The store could not write the body as fast as it arrived.
  public static let storeTooSlow = Rule(
    "store-too-slow", "9111 3", "the store could not keep up with the transfer")
  /// Only the end of the connection marks the end of the body, so the body may be incomplete.
  public static let unprovenEnd = Rule(
    "unproven-end", "9112 6.3", "only the end of the connection marks the end of the body")
  /// The response is a stream of events, which is for one subscriber.
  public static let eventStream = Rule("event-stream", "9111 3", "a stream of events is for one subscriber")
  /// A removal or an invalidation revoked the store permit while the response was in flight.
  public static let invalidatedInFlight = Rule(
    "invalidated-in-flight", "9111 4.4", "the response was invalidated in flight")
  /// The response to a later request for the URL was stored while this one was in flight.
  public static let overtaken = Rule(
    "overtaken", "9111 4", "the response to a later request was stored while this one was in flight")
  /// The caller's hook refused to store the response.
  public static let refusedByCaller = Rule("refused-by-caller", "9111 3", "the caller refused to store the response")
  /// An override of the request, or a rule, forbids storing the response.
  public static let storingDisallowed = Rule(
    "storing-disallowed", "9111 3", "a rule or an override of the program forbids storing")
  /// The response is a redirect, and the URL has query parameters that the cache key ignores. Redirects repeat them.
  public static let redirectOfIgnoredParameter = Rule(
    "redirect-of-ignored-parameter", "9110 15.4", "a redirect of a URL with parameters that the key ignores")
  /// The transport sent credentials that are not part of the request.
  public static let unseenCredentials = Rule(
    "unseen-credentials", "9111 3.5", "the transport sent credentials that the request does not show")
  /// The response comes from the fetch of an identical request.
  public static let coalesced = Rule("coalesced", "9111 4", "an identical request was in flight")
  /// Another machine of the fleet has fetched the response and shared it.
  public static let fleet = Rule("fleet", "9111 4", "another machine of the fleet has fetched it")
  /// The request's Host field, which is not part of the cache key, names another host than the URL.
  public static let otherHost = Rule("other-host", "9110 7.2", "the Host field names another host than the URL")
  /// The request has content, which is not part of the cache key.
  public static let requestWithContent = Rule("request-content", "9110 9.3.1", "a request with content is not cached")
  /// The content of the query is larger than ``CachingClientRequest/maximumQueryContentByteCount``, or not in memory.
  public static let contentNotKeyed = Rule(
    "content-not-keyed", "10008 2.7", "the content of the query is too large for a cache key, or not in memory")
  /// The rules by which a response is not stored, or not on disk.
  package static let storageRefusals: [Rule] =
    refusals + [
      .bodyTooLarge, .recordTooLarge, .incompleteBody, .unprovenEnd, .eventStream, .invalidatedInFlight,
      .overtaken, .refusedByCaller, .storingDisallowed, .redirectOfIgnoredParameter, .unseenCredentials, .otherHost,
      .requestWithContent, .contentNotKeyed, .memoryOnly, .writeDropped, .storeTooSlow,
    ]
}
