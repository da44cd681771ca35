import FoundationEssentials
public import HTTPCaching

extension CachingClientResponse {
  /// Returns the request to which the response leads; nil if it is not a redirect that can be followed.
  ///
  /// - Parameter request: The request of the response.
  @inlinable
  package func redirection(of request: RequestHead) -> Redirection? {
    // Few responses are redirects. To find that out in the generic function would take longer.
    Redirection.isRedirect(status) ? followableRedirection(of: request) : nil
  }

  @usableFromInline
  package func followableRedirection(of request: RequestHead) -> Redirection? {
    Redirection(of: request, status: status) {
      // The field is no list (RFC 9110, section 10.2.2). Recipients could choose different ones of two lines.
      let lines = Set(head.fields.values(of: "Location"))
      return lines.count == 1 ? lines.first : nil
    }
  }
}

extension CachingClientRequest {
  /// Whether the request follows redirects, and this response leads to another request.
  @inlinable
  func follows(_ response: CachingClientResponse<some StoredResponseMetadata & Sendable>) -> Bool {
    maximumRedirectCount > 0 && hasHop(after: response)
  }

  @usableFromInline
  func hasHop(after response: CachingClientResponse<some StoredResponseMetadata & Sendable>) -> Bool {
    hop(after: response) != nil
  }

  /// Returns the request to which a response leads; nil if the response is the final one.
  fileprivate func hop(after response: CachingClientResponse<some StoredResponseMetadata & Sendable>)
    -> CachingClientRequest?
  {
    guard let redirection = response.redirection(of: head) else { return nil }
    var next = redirected(to: redirection.head)
    if !redirection.keepsContent {
      next.body = nil
    } else if case .inContext? = body, !canResendBody {
      return nil
    }
    return next
  }
}

extension CachingClient {
  /// Returns the final response to a request, which may follow redirects.
  ///
  /// - Parameter lookup: The result of a lookup that was just made; nil to make one.
  @usableFromInline
  nonisolated(nonsending) func respondFollowingRedirects(
    to request: CachingClientRequest, over transport: some Transport, after lookup: LookupResult<Storage.Entry>?
  ) async throws -> Response {
    guard request.maximumRedirectCount > 0 else {
      return try await respond(to: request, over: transport, after: lookup)
    }
    var lookup = lookup
    var redirects: [FollowedRedirect] = []
    let final = try await followRedirects(of: request, upTo: request.maximumRedirectCount) { request in
      try await respond(to: request, over: transport, after: lookup.take())
    } next: { request, response in
      guard let next = request.hop(after: response) else { return nil }
      redirects.append(
        FollowedRedirect(request: request.head, response: response.head, source: response.source, target: next.head))
      return next
    }
    return final.response.following(redirects)
  }

  /// Follows redirects until the final response.
  ///
  /// The bodies of the redirects are read, so that the redirects can be stored.
  ///
  /// - Parameters:
  ///   - first: The first request.
  ///   - limit: The maximum number of redirects.
  ///   - respond: Returns the response to a request.
  ///   - next: Returns the request to which a response leads; nil if the response is the final one.
  /// - Returns: The final response and its request. The body may not have arrived yet.
  /// - Throws: ``CachingClientError/tooManyRedirects(limit:)``; the errors of the functions; the error that ends the
  ///   body of a redirect early.
  @inlinable  // For specialization: generic code copies each hop several times.
  nonisolated(nonsending) package func followRedirects<Hop: Sendable>(
    of first: Hop, upTo limit: Int, respond: nonisolated(nonsending) (Hop) async throws -> Response,
    next: nonisolated(nonsending) (Hop, Response) async throws -> Hop?
  ) async throws -> (response: Response, hop: Hop) {
    var hop = first
    var redirectCount = 0
    while true {
      let response = try await respond(hop)
      guard let next = try await next(hop, response) else { return (response, hop) }
      try await Self.drain(response)
      guard redirectCount < limit else { throw CachingClientError.tooManyRedirects(limit: limit) }
      redirectCount += 1
      hop = next
    }
  }

  /// Reads the body of a redirect from the network to its end. Stops after 1 MiB.
  @usableFromInline
  nonisolated(nonsending) package static func drain(_ response: Response) async throws {
    guard response.entry == nil, response.body.bytes == nil else { return }
    var byteCount = 0
    for try await chunk in response.body {
      byteCount += chunk.count
      if byteCount > 1 << 20 { return }
    }
  }
}
