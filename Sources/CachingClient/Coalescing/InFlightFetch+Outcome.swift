import HTTPCaching

extension InFlightFetch {
  /// The outcome of a fetch for its followers.
  enum Outcome: Sendable {
    /// A response that can be reused. Each follower decides whether its request can use it.
    ///
    /// A large body is the second value, which reads it from the store. The response's own body is then empty.
    case shared(CacheableResponse, ResponseBodyStream? = nil)
    /// A response that can be reused, and its body, which is still arriving. The response's own body is empty.
    case arriving(CacheableResponse, ResponseBodyStream)
    /// A response that the follower cannot use. It fetches its own.
    ///
    /// If the follower is not of the variant of the response, it shares a fetch with identical requests instead.
    case notShareable(variant: VaryKey?)
    /// A failure. Each follower serves a stale response if permitted, or tries again.
    case failed(StaleOnError.Failure)
    /// The origin has not responded by the time that the follower set. Serve a stale response.
    case unanswered
    /// The fetch was cancelled, or its permit revoked, before the follower joined. Look the request up again.
    case abandoned
  }

  /// Which followers read a body while it arrives.
  enum BodySharing {
    /// Those whose callers read it in pieces. The others wait until it is complete.
    case readingAlong
    case all
  }
}
