import CacheModel
import CachingClient
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// Calls the overridable methods of a cache's subclass, so that overrides receive every lookup and write.
///
/// `URLCache`'s store method has no parameters for the removal token and for updates by a 304. The response that an
/// override receives carries them to `super`. If an override passes a copy, a task-local value identifies the operation
/// that the copy belongs to.
///
/// `@unchecked Sendable`: weak references are read atomically, and this one is never set again.
final class SubclassDetour: @unchecked Sendable {
  /// The operation that the caching client requests for a response.
  enum Operation: Sendable {
    /// Inserts the response, unless a removal or an invalidation has covered it since the origin was asked.
    case insert(askedAt: RemovalToken?, isRevoked: @Sendable () -> Bool)
    /// Applies its fields and freshness to a stored response (RFC 9111, section 4.3.4).
    case update(CacheEntry, askedAt: RemovalToken)
  }

  /// An operation that was requested from a cache, until `super` takes it.
  final class RequestedOperation: Sendable {
    fileprivate let detour: SubclassDetour
    private let operation: Mutex<Operation?>

    fileprivate init(_ operation: Operation, of detour: SubclassDetour) {
      self.detour = detour
      self.operation = Mutex(operation)
    }

    fileprivate func take() -> Operation? { operation.withLock { $0.take() } }
  }

  private struct Current {
    let detour: SubclassDetour
    let operation: Operation
  }

  @TaskLocal private static var current: Current?

  private weak var cache: LMDBURLCache?

  init(_ cache: LMDBURLCache) {
    self.cache = cache
  }

  func lookup(_ request: CachingClientRequest) -> CachedURLResponse? {
    cache?.cachedResponse(for: request.storageRequest)
  }

  /// Calls the store method for a task if the request belongs to one, otherwise the store method for a request.
  func store(_ entry: CacheEntry, _ operation: Operation, for request: CachingClientRequest) {
    guard let cache else { return }
    let response = LMDBCachedURLResponse(entry, requestedOperation: RequestedOperation(operation, of: self))
    Self.$current.withValue(Current(detour: self, operation: operation)) {
      if let task = (request.context as? RequestContext)?.task, request.head.method == "GET",
        task.currentRequest?.httpMethod ?? "GET" == "GET"
      {
        cache.storeCachedResponse(response, for: task)
      } else {
        cache.storeCachedResponse(response, for: request.storageRequest)
      }
    }
  }

  /// Returns the operation for a response that `super` receives in a cache; nil for a response that a caller stores.
  ///
  /// The response is the caching client's or a copy of it.
  static func takeOperation(for response: CachedURLResponse, in cache: LMDBURLCache) -> Operation? {
    if let requested = (response as? LMDBCachedURLResponse)?.requestedOperation,
      requested.detour.cache === cache, let own = requested.take()
    {
      return own
    }
    guard let current, current.detour.cache === cache else { return nil }
    if case .insert = current.operation { return current.operation }
    // A copy of an updated response is stored as a complete response.
    return .insert(askedAt: nil, isRevoked: { false })
  }

  func remove(_ urls: [URL], for request: CachingClientRequest) {
    for url in urls {
      var removed = request.storageRequest
      removed.url = url
      cache?.removeCachedResponse(for: removed)
    }
  }
}

extension CachingClientRequest {
  /// The request under which a response is stored: a GET with the original fields.
  var storageRequest: URLRequest {
    let original = (context as? RequestContext)?.request
    if let original, head.method == "GET", original.httpMethod ?? "GET" == "GET", original.url == head.url {
      return original
    }
    var request = (original ?? URLRequest(url: head.url)).replacing(storageHead)
    request.httpBody = nil
    request.httpBodyStream = nil
    return request
  }
}
