import CachingClient
import Foundation
import HTTPCaching
import Synchronization

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
  ) -> (@Sendable (StorageProposal) async -> StorageProposal?)? {
    guard let session, let delegate = task.delegate as? any URLSessionDataDelegate else { return nil }
    let question = StorageQuestion(
      delegate: delegate, session: session, task: task, request: request, options: cache.core.options.caching,
      credentialDigest: { [cache] in cache.credentialDigest($0) })
    return { await question.ask($0) }
  }

  /// What the delegate makes of a proposal; nil if it is not to be stored. His first answer counts.
  func ask(_ proposal: StorageProposal) async -> StorageProposal? {
    guard
      let response = HTTPURLResponse.make(
        url: request.url, head: ResponseHead(status: proposal.status, fields: proposal.fields))
    else { return proposal }
    let proposed = CachedURLResponse(
      response: response, data: proposal.body, userInfo: nil,
      storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    let answer = await withCheckedContinuation { (continuation: CheckedContinuation<ChangedResponse?, Never>) in
      let isAnswered = Atomic(false)
      session.delegateQueue.addOperation {
        delegate.urlSession(session, dataTask: task, willCacheResponse: proposed) { changed in
          guard !isAnswered.exchange(true, ordering: .relaxed) else { return }
          continuation.resume(returning: changed.map { ChangedResponse(cached: $0) })
        }
      }
    }
    guard let changed = answer?.cached, changed.storagePolicy != .notAllowed else { return nil }
    return changed === proposed ? proposal : change(proposal, to: changed, from: response)
  }

  private func change(
    _ proposal: StorageProposal, to changed: CachedURLResponse, from response: HTTPURLResponse
  ) -> StorageProposal {
    var proposal = proposal
    proposal.body = changed.data
    proposal.isMemoryOnly = changed.storagePolicy == .allowedInMemoryOnly
    proposal.attachment = ChangedResponse(cached: changed)
    guard let new = changed.response as? HTTPURLResponse, new !== response else { return proposal }
    // Other fields may give it another lifetime and other variants.
    let direct = DirectStorage(
      request: request, response: new.head, responseTime: proposal.facts.responseTime, options: options)
    proposal.status = new.statusCode
    proposal.fields = direct.fields
    proposal.facts = direct.facts
    proposal.vary = VarySelection(
      request: request, response: direct.fields, credentialDigest: credentialDigest)
    return proposal
  }
}
