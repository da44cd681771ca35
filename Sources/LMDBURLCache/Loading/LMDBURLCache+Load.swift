public import CachingClient
public import Foundation
public import FoundationNetworking
public import HTTPCaching

/// A complete response with its source, age and TTL, and the rules that decided.
public struct LoadResult: Sendable {
  /// The complete body.
  public let data: Data
  /// The response; a stored response has an `Age` field.
  public let response: URLResponse
  /// The source of the response. Those of the redirects before it are in ``redirects``.
  public let source: ResponseSource
  /// The redirects that led to the response, in order; empty if none was followed.
  public let redirects: [FollowedRedirect]
  /// The age in seconds; 0 for a response from the origin that declares no age.
  public let age: Int
  /// The TTL of the stored response in seconds, negative if it is stale; nil if none is stored.
  public let timeToLive: TimeInterval?
  /// The rule that selected this response, with its RFC and section.
  public let reason: Rule
  /// The rule because of which a response from the origin was not stored; its text names the limit if that is a size.
  ///
  /// Nil if it was stored, or if it came from the store.
  public let storageRefusal: Rule?
  /// The names of the rules in ``LMDBURLCache/LMDBURLCache/Options/rules`` that apply to the request and the response,
  /// in their order.
  public let cachingRules: [String]
}

/// The result of a load whose body was not kept.
package struct WarmResult: Sendable {
  package let source: ResponseSource
  /// The status code; 0 for a response that is not HTTP.
  package let status: Int
  /// The size of the final response's body if it was fetched, also by another request; otherwise 0.
  package let byteCount: Int
  /// The rule because of which a response from the origin was not stored; nil as in ``LoadResult/storageRefusal``.
  package let storageRefusal: Rule?
}

extension LMDBURLCache {
  /// Loads a request like ``data(for:)`` and reports the source, age, TTL and the rules that decided.
  ///
  /// - Parameter request: Any request; its cache policy is honored.
  /// - Throws: The errors of ``data(for:)``.
  /// - Complexity: As ``data(for:)``; a response that is not a hit costs one more lookup.
  public func load(_ request: URLRequest) async throws -> LoadResult {
    try await load(request) { load in try await load.finish(load.firstHop(request)) }
  }

  /// Loads a request like ``load(_:)`` without holding all of the body in memory.
  ///
  /// - Parameter receive: Receives the body in chunks, and the response. Its errors are thrown unchanged.
  /// - Returns: The result, with an empty body.
  package func load(
    _ request: URLRequest, _ receive: (ResponseBodyStream, URLResponse) async throws -> Void
  ) async throws -> LoadResult {
    try await load(request) { load in
      load.readsBodyInPieces = true
      let result = try await load.run(load.firstHop(request))
      try await receive(result.response.body, result.urlResponse())
      return (result, Data())
    }
  }

  private func load(
    _ request: URLRequest, _ run: (inout CachedLoad) async throws -> (CachedLoad.Result, Data)
  ) async throws -> LoadResult {
    do {
      var load = CachedLoad(context: ownContext, cache: self)
      // A fetched response is stored after its body has been read completely.
      let (result, data) = try await run(&load)
      let response = result.response
      return LoadResult(
        data: data, response: try result.urlResponse(), source: response.source, redirects: response.redirects,
        age: response.age, timeToLive: timeToLive(of: response), reason: response.reason,
        storageRefusal: response.storageRefusal,
        cachingRules: namesOfRules(for: result))
    } catch {
      throw FoundationResponse.error(for: error)
    }
  }

  private func namesOfRules(for result: CachedLoad.Result) -> [String] {
    let rules = options.rules
    guard !rules.isEmpty else { return [] }
    let matches = rules.matches(
      of: result.request.head.url, contentType: result.response.head.fields["Content-Type"], hasResponse: true)
    return matches.filter { $0.appliesToResponse == true }.map(\.rule.name)
  }

  private func timeToLive(of response: CachingClient<ResponseCache>.Response) -> TimeInterval? {
    // The entry of a revalidated response has the freshness of before.
    let stored = response.source == .revalidated ? nil : response.entry?.freshness
    return (stored ?? response.storageReport?.freshness)?.timeToLive(at: core.now)
  }

  /// Loads a request so that its response is stored, and drops each chunk of the body as it arrives.
  ///
  /// - Parameter progress: Receives the number of bytes in each chunk, from the origin or from a stored part.
  /// - Throws: The errors of ``data(for:)``.
  package func warm(
    _ request: URLRequest, progress: @Sendable (Int) -> Void = { _ in }
  ) async throws -> WarmResult {
    do {
      var load = CachedLoad(context: ownContext, cache: self)
      load.readsBodyInPieces = true
      let result = try await load.run(load.firstHop(request))
      let response = result.response
      var byteCount = 0
      if response.source == .miss || response.source == .coalesced {
        // A fetched response is stored after its body has been read completely.
        for try await chunk in response.body {
          byteCount += chunk.count
          progress(chunk.count)
        }
      }
      return WarmResult(
        source: response.source, status: response.status, byteCount: byteCount, storageRefusal: response.storageRefusal)
    } catch {
      throw FoundationResponse.error(for: error)
    }
  }
}
