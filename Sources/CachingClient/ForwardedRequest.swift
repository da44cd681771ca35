import FoundationEssentials
public import HTTPCaching
import ResponseStore
import Synchronization

/// A request on its way to the origin past the store, whoever carries it. Its answer may change what is stored: an unsafe
/// method invalidates (RFC 9111 section 4.4), and what a POST brings may answer a later GET (RFC 9110 section 9.3.3).
///
///     let forwarded = ForwardedRequest(request, past: client)   // before it is sent
///     await forwarded.invalidate(answeredBy: head)              // when the head has come, or the request has failed after it
///     await forwarded.store(response)                           // when the body is complete, for a POST
///
/// Safe to use from any thread.
public final class ForwardedRequest<Storage: ResponseStorage>: Sendable {
  private typealias Plan = FetchPlan<Storage.Entry>

  private let client: CachingClient<Storage>
  private let request: ClientRequest
  private let requestTime: Date
  /// Filed before the request is sent: a change by another request that overtakes this one keeps its answer out of the store.
  private let flight: Flight<Storage.Entry>?
  /// The key that ``expectUnseenResponse()`` has barred.
  private let barredKey = Mutex<RequestKey?>(nil)

  /// A request that is about to be sent.
  public init(_ request: ClientRequest, past client: CachingClient<Storage>) {
    self.client = client
    self.request = request
    requestTime = client.clock()
    let isStorable = request.head.method == "POST" && !request.head.namesOtherHost
    flight = isStorable ? request.key.map { client.flights.enterAlone($0) } : nil
  }

  deinit {
    if let flight { client.flights.leave(flight) }
    unbar()
  }

  /// Lets the answer invalidate what the request changed. An answer to a safe method, and an error, changes nothing.
  public func invalidate(answeredBy head: ResponseHead) async {
    let targets = Invalidation.targets(request: request.head, response: head)
    if !targets.isEmpty { await client.invalidate(targets, for: request, sparing: flight) }
  }

  /// Whether ``invalidate(answeredBy:)`` has anything to do.
  public func invalidates(answeredBy head: ResponseHead) -> Bool {
    !Invalidation.targets(request: request.head, response: head).isEmpty
  }

  /// Prepares for a request that is sent again where its response is not seen in time, as `URLSession` does once a
  /// challenge is answered.
  ///
  /// Removes what is stored for the request's URL. Until ``unseenResponseHasCome(_:)``, or until this object is released,
  /// nothing that is fetched from that URL is stored. A safe method changes nothing.
  public func expectUnseenResponse() async {
    // As a success without fields.
    let targets = Invalidation.targets(request: request.head, response: ResponseHead(status: 204, fields: HTTPFields()))
    guard !targets.isEmpty, let key = request.key else { return }
    let isFirst = barredKey.withLock { barredKey in
      defer { barredKey = key }
      return barredKey == nil
    }
    if isFirst { client.flights.bar(key) }
    await client.invalidate(targets, for: request)
  }

  /// Ends what ``expectUnseenResponse()`` began.
  ///
  /// - Parameter head: The response, if one is known; what it invalidates is removed.
  public func unseenResponseHasCome(_ head: ResponseHead?) async {
    // Other processes may have stored meanwhile.
    if let head { await invalidate(answeredBy: head) }
    unbar()
  }

  private func unbar() {
    let key = barredKey.withLock { barredKey in
      defer { barredKey = nil }
      return barredKey
    }
    if let key { client.flights.unbar(key) }
  }

  /// Stores the answer to a POST for a later GET, if it permits that. To be called after ``invalidate(answeredBy:)``.
  ///
  /// - Parameter response: the complete answer; nothing is stored if its body streams.
  public func store(_ response: IncomingResponse) async {
    guard let flight, let bytes = response.body.bytes, bytes.count <= client.maximumBodyByteCount,
      response.announcedByteCount(for: request).allows(bytes.count),
      case (let plan, var proposal)? = reusable(response, because: .writeThrough)
    else { return }
    proposal.body = bytes
    _ = await client.finish(proposal, plan, in: flight)
  }

  /// The answer to a POST, gathered on its way to the caller; `nil` if it is not to be stored.
  func collect(_ response: IncomingResponse, because rule: Rule) async throws -> ClientResponse<Storage.Entry>? {
    guard let flight, let (plan, proposal) = reusable(response, because: rule) else { return nil }
    // Keeps this object, and with it the flight, until the body has come.
    flight.start { [self] in await client.collect(response, as: proposal, plan, in: flight) }
    return try await flight.answer()
  }

  /// What the answer to a POST is as the answer to a GET, if it may be one.
  private func reusable(_ response: IncomingResponse, because rule: Rule) -> (Plan, StorageProposal)? {
    guard !response.usedUnseenCredentials else { return nil }
    let arrival = CachingClient<Storage>.Arrival(
      response: response, requestTime: requestTime, responseTime: client.clock())
    let judgement = client.judge(
      request.overrides.judged(response.head), arrival, request, sentAs: request.outgoing().head)
    guard case .store(let proposal) = judgement, let flight else { return nil }
    var get = request
    get.head.method = "GET"
    get.body = nil
    var plan = Plan(request: get, key: flight.key, entry: nil, rule: rule, forward: .method)
    // The flight stays filed as long as this object lives.
    plan.owner = self
    return (plan, proposal)
  }
}
