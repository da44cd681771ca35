import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

/// A call of a data delegate's `urlSession(_:dataTask:willCacheResponse:completionHandler:)`.
struct WillCacheQuery: Sendable {
  let delegate: any URLSessionDataDelegate
  let session: URLSession
  let task: URLSessionDataTask
  let request: RequestHead
  let options: CachingOptions
  let credentialDigest: @Sendable (String) -> String

  /// Returns the hook that asks a task's delegate; nil if there is no data delegate.
  static func willStore(
    _ request: RequestHead, _ task: URLSessionDataTask, _ session: URLSession?, _ cache: LMDBURLCache
  ) -> CachingClientRequest.StorageHook? {
    guard let session, let delegate = task.delegate as? any URLSessionDataDelegate else { return nil }
    let query = WillCacheQuery(
      delegate: delegate, session: session, task: task, request: request, options: cache.options.caching,
      credentialDigest: { [tiers = cache.core] in tiers.credentialDigest($0) })
    return { query.ask($0, $1) }
  }

  /// Asks the delegate on its session's queue and calls `reply` there with the response to store, or nil for none.
  ///
  /// Later calls of the delegate follow this one on the same queue. If the delegate replies at once, the response is
  /// therefore stored when the task completes.
  func ask(_ proposal: ProposedResponse, _ reply: @escaping @Sendable (ProposedResponse?) -> Void) {
    guard
      let response = HTTPURLResponse.make(
        url: request.url, head: ResponseHead(status: proposal.status, fields: proposal.fields),
        isContentDecoded: proposal.freshness.isOfDecodedContent(proposal.fields))
    else { return reply(proposal) }
    let proposed = CachedURLResponse(
      response: response, data: proposal.body, userInfo: nil,
      storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    session.delegateQueue.addOperation { [self] in
      delegate.urlSession(session, dataTask: task, willCacheResponse: proposed) { changed in
        guard let changed, changed.storagePolicy != .notAllowed else { return reply(nil) }
        reply(changed === proposed ? proposal : change(proposal, to: changed, from: response))
      }
    }
  }

  private func change(
    _ proposal: ProposedResponse, to changed: CachedURLResponse, from response: HTTPURLResponse
  ) -> ProposedResponse? {
    var proposal = proposal
    proposal.body = changed.data
    proposal.isMemoryOnly = changed.storagePolicy == .allowedInMemoryOnly
    proposal.attachment = changed
    guard let new = changed.response as? HTTPURLResponse, new !== response else { return proposal }
    guard Storability.sizeRefusal(of: new.head.fields, options: options) == nil else { return nil }
    // Other fields may change the freshness lifetime and the Vary key.
    let manual = ManualStorage(
      request: request, response: new.head, responseTime: proposal.freshness.responseTime, options: options)
    proposal.status = new.statusCode
    proposal.fields = manual.fields
    let isDecoded = proposal.freshness.flags.contains(.decoded)
    proposal.freshness = manual.freshness
    // The delegate received the body as the session delivers it, without its content encoding.
    if isDecoded { proposal.freshness.flags.insert(.decoded) }
    proposal.vary = VaryKey(
      request: request, response: manual.fields, options: options, isContentDecoded: isDecoded,
      credentialDigest: credentialDigest)
    return proposal
  }
}
