public import CachingClient
public import Foundation
public import HTTPCaching

#if canImport(FoundationNetworking)
  public import FoundationNetworking
#endif

/// A whole answer with what the cache knows about it: where it came from, how old it is, how long it stays fresh, and why.
public struct CachedAnswer: Sendable {
  /// The whole body.
  public let data: Data
  /// The response; an answer from the store has an `Age` field.
  public let response: URLResponse
  /// Where it came from.
  public let source: ResponseSource
  /// Its age in seconds; 0 for an answer from the origin that says nothing of its age.
  public let age: Int
  /// The seconds for which the stored response stays fresh, negative if it is stale; nil if none is stored.
  public let timeLeft: TimeInterval?
  /// Why it was answered this way: the rule, with its RFC and section.
  public let reason: Rule
  /// Why a response from the origin was not stored; nil if it was, if the answer came from the store, or if only its body
  /// or the delegate was against it.
  public let refusal: Rule?
}

extension LMDBURLCache {
  /// Loads a request through the cache as ``data(for:)`` does, and tells about the answer what the cache knows.
  ///
  /// - Parameter request: Any request; its cache policy is honoured.
  /// - Throws: As ``data(for:)``.
  /// - Complexity: That of ``data(for:)``; an answer that is not a hit costs one more lookup.
  public func load(_ request: URLRequest) async throws -> CachedAnswer {
    let context = ownContext
    do {
      let (answer, url) = try await CachedLoad(context: context, cache: self).run(request)
      let response = try FoundationAnswer.response(for: answer, url: url)
      // Read to its end first: only then is a fetched response stored.
      let data = try await answer.body.collect(upTo: .max)
      return CachedAnswer(
        data: data, response: response, source: answer.source, age: answer.age,
        timeLeft: timeLeft(answer, context.complete(request, addsCookies: true), url), reason: answer.reason,
        refusal: answer.refusal)
    } catch {
      throw FoundationAnswer.error(for: error)
    }
  }

  private func timeLeft(_ answer: CachedLoad.Answer, _ request: URLRequest, _ url: URL) -> TimeInterval? {
    // A confirmed entry has new facts, which only a lookup finds.
    if let entry = answer.entry, answer.source != .revalidated { return entry.facts.remaining(at: core.now) }
    var request = request
    request.url = url
    guard let key = key(for: request), let head = request.head else { return nil }
    let stored = core.find(key) { $0.matches(head, credentialDigest: credentialDigest) }
    return stored?.record.facts.remaining(at: core.now)
  }
}
