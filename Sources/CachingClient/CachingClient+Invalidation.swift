import FoundationEssentials
import HTTPCaching
public import ResponseStore

extension CachingClient {
  /// Sends a request that the store has no part in, and lets its answer invalidate what it changed (RFC 9111 section 4.4).
  func forward(_ request: ClientRequest, over transport: some Transport, because rule: Rule) async throws -> Response {
    let forwarded = ForwardedRequest(request, past: self)
    let incoming = try await transport.send(request.outgoing())
    await forwarded.invalidate(answeredBy: incoming.head)
    if let answer = try await forwarded.collect(incoming, because: rule) { return answer }
    let refusal: Rule? =
      switch request.head.method {
      case "GET", "HEAD": nil
      case "POST": .postNotCached
      default: .methodNotCached
      }
    return networkAnswer(
      incoming, body: incoming.checkedBody(for: request), rule, refusal == nil ? .bypass : .method,
      refused: refusal ?? rule)
  }

  /// Fetches first, storage second: whatever is stored before the fetches lose their right is removed here, and nothing is
  /// stored afterwards.
  ///
  /// - Parameter spared: the fetch whose own answer invalidates.
  func invalidate(
    _ targets: Invalidation, for request: ClientRequest, sparing spared: Flight<Storage.Entry>? = nil
  ) async {
    let urls = targets.urls.map { request.overrides.keyURL(for: $0) }
    var overtakesFetches = false
    for url in urls {
      guard let key = RequestKey(url: url, partition: request.partition) else { continue }
      if flights.void(key, sparing: spared) { overtakesFetches = true }
    }
    // Which groups a response belongs to is known only when its head has come, so all fetches from that origin are
    // overtaken, in all partitions as what is stored is.
    if let group = targets.groups.first, let scope = RemovalScope.group(group, ofOrigin: request.head.url) {
      flights.void(sparing: spared) { scope.mayCover($0) }
    }
    let invalidation = StorageInvalidation(
      urls: urls, groups: targets.groups, origin: targets.origin, overtakesFetches: overtakesFetches)
    // Whatever was removed up to the token of the spared one does not cover what its answer brings; nor does what is
    // removed here.
    let ticket = spared.flatMap { $0.ticket.isVoid ? nil : $0.ticket }
    let known = ticket?.token ?? storage.removalToken
    var token = known
    await storage.invalidate(invalidation, for: request, movingPast: &token)
    ticket?.advance(from: known, to: token)
  }

  /// Keeps fetches that are under way from storing what they bring; their callers get it all the same.
  ///
  /// To be called **before** responses are removed from the storage by any other way than through this client: a purge is then
  /// not undone by a response that was asked for before it.
  ///
  /// - Parameter matches: which keys are meant, of what the responses would be stored under; by default all.
  public func voidFetches(where matches: (RequestKey) -> Bool = { _ in true }) {
    flights.void(where: matches)
  }
}
