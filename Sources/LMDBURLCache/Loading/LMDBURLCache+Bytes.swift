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
  /// - A stored body larger than 1 MiB stays on disk and is read in pieces of 256 KiB on demand. If the response is
  ///   evicted, removed or replaced in the meantime, reading throws `URLError.networkConnectionLost`. Smaller bodies,
  ///   and bodies in the memory tier, are returned from memory. The first time that this process reads a large body,
  ///   this method reads all of it to verify its checksum.
  /// - A body from the origin that may be stored is collected in memory, up to ``Options/maximumStoredBodyByteCount``,
  ///   at the origin's speed. It is stored when it is complete. The caller reads the same memory at its own speed.
  /// - A body that is not stored is transferred at the caller's speed; a few hundred kilobytes are buffered.
  /// - Cancelling the task that reads, or releasing the chunks, ends the fetch unless other requests wait for its
  ///   result.
  /// - A request that finds an identical one in flight waits until that body is complete, and then gets all of it. A
  ///   slow reader therefore never delays another request.
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
