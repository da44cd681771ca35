public import CachingClient
import Foundation
public import FoundationNetworking

extension LMDBURLCache {
  /// Loads a request through the cache and returns the body in chunks, without holding all of it in memory.
  ///
  ///     let (chunks, response) = try await cache.bytes(for: request)
  ///     for try await chunk in chunks { try file.write(contentsOf: chunk) }
  ///
  /// Returns when the head of the response has arrived, or its first part if a stale response may replace it. Handles
  /// requests, redirects and cookies like ``data(for:)``.
  ///
  /// - A stored body larger than 1 MiB stays on disk and is read in pieces of 256 KiB on demand, each of which is
  ///   compared with its checksums. If the response is evicted, removed or replaced in the meantime, reading throws
  ///   `URLError.networkConnectionLost`. Smaller bodies, and bodies in the memory tier, are returned from memory.
  /// - A body from the origin that may be stored arrives at the origin's speed, and is written to disk meanwhile if it
  ///   is larger than 1 MiB. The caller reads it at its own speed.
  /// - A body that is not stored is transferred at the caller's speed; a few hundred kilobytes are buffered.
  /// - Cancelling the task that reads, or releasing the chunks, ends the fetch unless other requests wait for its
  ///   result or read along.
  /// - A request that finds an identical one in flight reads along from the first byte. A slow reader never delays
  ///   another request.
  ///
  /// - Parameter request: Any request; its cache policy is honored.
  /// - Returns: The chunks of the body, which can be read once, and the response. A stored response has an `Age` field.
  /// - Throws: The errors of ``data(for:)``. Reading the chunks throws the same errors if the body ends early. A second
  ///   reader of chunks from the origin gets `CachingClientError.bodyAlreadyRead`.
  public func bytes(for request: URLRequest) async throws -> (ResponseBodyStream, URLResponse) {
    var load = CachedLoad(context: ownContext, cache: self)
    load.readsBodyInPieces = true
    if let scheme = request.url?.scheme?.lowercased(), scheme != "http", scheme != "https" {
      let (data, response) = try await data(for: request)
      return (ResponseBodyStream(data), response)
    }
    do {
      let hop = load.firstHop(request)
      let result = try await load.run(hop)
      let body = result.response.body
      return (
        body.bytes == nil ? body.convertingErrors { FoundationResponse.error(for: $0) } : body,
        try result.urlResponse()
      )
    } catch {
      throw FoundationResponse.error(for: error)
    }
  }
}
