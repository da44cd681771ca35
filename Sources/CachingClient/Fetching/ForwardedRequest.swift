import CacheModel
import FoundationEssentials
public import HTTPCaching
import Synchronization

/// A request that bypasses the storage, sent by the caching client or by other code.
///
/// Its response can change the storage: an unsafe method invalidates stored responses (RFC 9111 section 4.4), and the
/// response to a POST can be stored for later GETs (RFC 9110 section 9.3.3).
///
///     let forwarded = ForwardedRequest(request, past: client)   // before the request is sent
///     await forwarded.invalidate(answeredBy: head)              // after the head has arrived, even if the body fails
///     await forwarded.store(response)                           // for a POST, when the body is complete
///
/// Of several POSTs to a URL that overlap, the response to the one that is answered last is stored. HTTP does not tell
/// in which order the origin carried them out, so a cache can only take the order of the responses: each invalidates
/// what is stored when it arrives (RFC 9111 section 4.4). The response to a POST reflects its own change. Therefore the
/// response to another POST does not prevent storing it if it arrives before its head, and does if it arrives later. A
/// change by another method, whose result the cache does not get, and a removal on request always do, from the time the
/// POST is sent.
///
/// All members can be called from any thread.
public final class ForwardedRequest<Storage: ResponseStorage>: Sendable {
  private typealias Plan = FetchPlan<Storage.Entry>

  private let client: CachingClient<Storage>
  private let request: CachingClientRequest
  private let requestTime: Date
  /// Registered before the request is sent, so that an invalidation in the meantime revokes its store permit.
  private let fetch: InFlightFetch?
  /// The key for which ``expectUnseenResponse()`` prevents storing.
  private let barredKey = Mutex<RequestKey?>(nil)

  /// Creates a request that bypasses the storage of `client`. Call this before the request is sent.
  public init(_ request: CachingClientRequest, past client: CachingClient<Storage>) {
    self.client = client
    self.request = request
    requestTime = client.clock()
    let isStorable = request.head.method == "POST" && !request.isQuery && !request.head.namesOtherHost
    fetch =
      isStorable
      ? request.fetchKey.map {
        client.inFlightFetches.startUnshared($0, since: client.storage.removalToken, isChange: true)
      } : nil
  }

  deinit {
    if let fetch { client.inFlightFetches.finish(fetch) }
    unbar()
  }

  /// Removes the stored responses that the response invalidates.
  ///
  /// A response to a safe method and an error response invalidate nothing.
  public func invalidate(answeredBy head: ResponseHead) async {
    let targets = targets(answeredBy: head)
    if !targets.isEmpty {
      await client.invalidate(targets, for: request, by: fetch)
    } else if let fetch {
      client.inFlightFetches.recordHead(of: fetch)
    }
  }

  /// Returns whether ``invalidate(answeredBy:)`` would remove anything.
  public func invalidates(answeredBy head: ResponseHead) -> Bool {
    !targets(answeredBy: head).isEmpty
  }

  private func targets(answeredBy head: ResponseHead) -> Invalidation {
    var sent = request.head
    // A POST that is a query is as safe as one.
    if request.isQuery { sent.method = "QUERY" }
    return Invalidation.targets(request: sent, response: head)
  }

  /// Prepares for a repetition of the request whose response is not visible in time.
  ///
  /// `URLSession` repeats a request after an authentication challenge. This removes the stored responses for the
  /// request's URL. Responses from that URL are not stored until ``unseenResponseHasCome(_:)`` is called or this object
  /// is released. Does nothing for a safe method.
  public func expectUnseenResponse() async {
    // Assume a successful response without fields.
    let targets = targets(answeredBy: ResponseHead(status: 204, fields: HeaderFields()))
    guard !targets.isEmpty, let key = request.fetchKey else { return }
    let isFirst = barredKey.withLock { barredKey in
      defer { barredKey = key }
      return barredKey == nil
    }
    if isFirst { client.inFlightFetches.bar(key) }
    await client.invalidate(targets, for: request)
  }

  /// Allows storing again after ``expectUnseenResponse()``.
  ///
  /// - Parameter head: The head of the response, if known. The stored responses that it invalidates are removed.
  public func unseenResponseHasCome(_ head: ResponseHead?) async {
    // Other processes may have stored responses in the meantime.
    if let head { await invalidate(answeredBy: head) }
    unbar()
  }

  private func unbar() {
    let key = barredKey.withLock { barredKey in
      defer { barredKey = nil }
      return barredKey
    }
    if let key { client.inFlightFetches.unbar(key) }
  }

  /// Stores the response to a POST for later GETs, if the response permits that.
  ///
  /// Call this after ``invalidate(answeredBy:)``.
  ///
  /// - Parameter response: The complete response. Nothing is stored if its body is a stream.
  public func store(_ response: IncomingResponse) async {
    guard let fetch, let bytes = response.body.bytes,
      response.declaredByteCount(for: request).allows(bytes.count),
      case (let plan, var proposal)? = reusable(response, because: .writeThrough)
    else { return }
    let limit = client.maximumBodyByteCount
    guard bytes.count <= limit else { return client.refuse(.bodyTooLarge(limit: limit), request, fetch) }
    proposal.body = bytes
    _ = await client.storeAndShare(proposal, plan, in: fetch)
  }

  /// Returns a response to a POST that is stored while the caller reads it; `nil` if it cannot be stored.
  func collect(_ response: IncomingResponse, because rule: Rule) async throws -> CachingClientResponse<Storage.Entry>? {
    guard let fetch, let (plan, proposal) = reusable(response, because: rule) else { return nil }
    // Retain this object, and with it the fetch, until the body has arrived.
    fetch.start { [self] in
      await client.storeWhileStreaming(response, as: proposal, plan, in: fetch, over: NoSecondRequest())
    }
    return try await fetch.response()
  }

  /// In place of a transport: a POST is not sent again for the rest of a body.
  private struct NoSecondRequest: Transport {
    func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
      throw CachingClientError.storedBodyLost
    }
  }

  /// Returns the response to a POST as a response to a GET, if it can be stored as such.
  private func reusable(_ response: IncomingResponse, because rule: Rule) -> (Plan, ProposedResponse)? {
    guard !response.usedUnseenCredentials else { return nil }
    let arrival = Arrival(
      response: response, sent: request.outgoing().head, requestTime: requestTime, responseTime: client.clock())
    let decision = client.decideStorage(request.overrides.applied(to: response.head), arrival, request)
    guard case .store(let proposal) = decision, let fetch else { return nil }
    var get = request
    get.head.method = "GET"
    get.body = nil
    // The plan retains this object, whose deinit would unregister the fetch.
    return (
      Plan(
        request: get, key: fetch.key, entry: nil, start: client.lookupStart, rule: rule, forward: .method, owner: self),
      proposal
    )
  }
}
