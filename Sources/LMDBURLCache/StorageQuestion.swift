import CachingClient
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The question that a data delegate is asked before its response is stored.
struct StorageQuestion: @unchecked Sendable {
  // Sendable: nothing changes, and all parts may be used from any thread.
  let delegate: any URLSessionDataDelegate
  let session: URLSession
  let task: URLSessionDataTask
  let request: RequestHead
  let options: CachingOptions
  let credentialDigest: @Sendable (String) -> String

  /// The hook that asks a task's delegate; nil if it has none that could be asked.
  static func willStore(
    _ request: RequestHead, _ task: URLSessionDataTask, _ session: URLSession?, _ cache: LMDBURLCache
  ) -> ClientRequest.StorageHook? {
    guard let session, let delegate = task.delegate as? any URLSessionDataDelegate else { return nil }
    let question = StorageQuestion(
      delegate: delegate, session: session, task: task, request: request, options: cache.core.options.caching,
      credentialDigest: { [cache] in cache.credentialDigest($0) })
    return { question.ask($0, $1) }
  }

  /// Asks the delegate on its session's queue, and answers there with what it makes of a proposal; nil if that is not to be
  /// stored. What the task is told afterwards comes behind the question, so a delegate that answers at once finds the response
  /// stored when the task completes.
  func ask(_ proposal: StorageProposal, _ answer: @escaping @Sendable (StorageProposal?) -> Void) {
    guard
      let response = HTTPURLResponse.make(
        url: request.url, head: ResponseHead(status: proposal.status, fields: proposal.fields))
    else { return answer(proposal) }
    let proposed = CachedURLResponse(
      response: response, data: proposal.body, userInfo: nil,
      storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    session.delegateQueue.addOperation { [self] in
      delegate.urlSession(session, dataTask: task, willCacheResponse: proposed) { changed in
        guard let changed, changed.storagePolicy != .notAllowed else { return answer(nil) }
        answer(changed === proposed ? proposal : change(proposal, to: changed, from: response))
      }
    }
  }

  private func change(
    _ proposal: StorageProposal, to changed: CachedURLResponse, from response: HTTPURLResponse
  ) -> StorageProposal? {
    var proposal = proposal
    proposal.body = changed.data
    proposal.isMemoryOnly = changed.storagePolicy == .allowedInMemoryOnly
    proposal.attachment = ChangedResponse(cached: changed)
    guard let new = changed.response as? HTTPURLResponse, new !== response else { return proposal }
    guard new.head.fields.isStorable else { return nil }
    // Other fields may give it another lifetime and other variants.
    let direct = DirectStorage(
      request: request, response: new.head, responseTime: proposal.facts.responseTime, options: options)
    proposal.status = new.statusCode
    proposal.fields = direct.fields
    let isDecoded = proposal.facts.flags.contains(.decoded)
    proposal.facts = direct.facts
    // Delegates see bodies as they come from the session.
    if isDecoded { proposal.facts.flags.insert(.decoded) }
    proposal.vary = VarySelection(
      request: request, response: direct.fields, credentialDigest: credentialDigest)
    return proposal
  }
}
