public import HTTPCaching

/// The reasons that arise while carrying a decision out; those of the decisions themselves are in HTTPCaching.
extension Rule {
  /// The body is larger than the engine may keep.
  public static let bodyTooLarge = Rule("body-too-large", "9111 3", "the body is larger than the cache keeps")
  /// The body's length is not what Content-Length says.
  public static let incompleteBody = Rule("incomplete-body", "9111 3.3", "the body is not as long as announced")
  /// Only the end of the connection marks the end of the body, which may have been cut.
  public static let unprovenEnd = Rule(
    "unproven-end", "9112 6.3", "nothing but the end of the connection marks the end of the body")
  /// A stream of events is for one subscriber.
  public static let eventStream = Rule("event-stream", "9111 3", "a stream of events is for one subscriber")
  /// Something was changed while the response was on its way.
  public static let overtaken = Rule("overtaken", "9111 4.4", "an invalidation overtook the response")
  /// The caller's hook refused it.
  public static let refusedByCaller = Rule("refused-by-caller", "9111 3", "the caller did not want it stored")
  /// It came by credentials that are not part of the request.
  public static let unseenCredentials = Rule(
    "unseen-credentials", "9111 3.5", "the transport sent credentials that the request does not show")
  /// An identical request brought it.
  public static let collapsed = Rule("collapsed", "9111 4", "an identical request was under way")
  /// The request's Host field, which is no part of the key, names another host than its URL.
  public static let otherHost = Rule("other-host", "9110 7.2", "the Host field names another host than the URL")
  /// The request has content, which is no part of the key.
  public static let requestWithContent = Rule("request-content", "9110 9.3.1", "a request with content is not cached")
}
