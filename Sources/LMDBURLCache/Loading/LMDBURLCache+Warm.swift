import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

/// The result of a load whose body was not kept.
package struct WarmResult: Sendable {
  /// The source of the final response.
  package let source: ResponseSource
  /// The status code; 0 for a response that is not HTTP.
  package let status: Int
  /// The number of bytes that arrived from the origin.
  package let byteCount: Int
  /// The rule because of which a response from the origin was not stored; nil as in ``LoadResult/storageRefusal``.
  package let storageRefusal: Rule?
}

extension LMDBURLCache {
  /// Loads a request so that its response is stored, and drops each chunk of the body as it arrives.
  ///
  /// - Throws: The errors of ``data(for:)``.
  package func warm(_ request: URLRequest) async throws -> WarmResult {
    do {
      var load = CachedLoad(context: ownContext, cache: self)
      load.readsBodyInPieces = true
      let result = try await load.run(load.firstHop(request))
      let response = result.response
      var byteCount = 0
      if response.source == .network || response.source == .coalesced {
        // A fetched response is stored after its body has been read completely.
        for try await chunk in response.body { byteCount += chunk.count }
      }
      return WarmResult(
        source: response.source, status: response.status, byteCount: byteCount, storageRefusal: response.storageRefusal)
    } catch {
      throw FoundationResponse.error(for: error)
    }
  }
}
