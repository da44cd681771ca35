import Foundation
import FoundationNetworking

extension URLSessionConfiguration {
  /// Returns a copy of this configuration whose sessions use a cache.
  ///
  ///     let session = URLSession(configuration: .default.caching(with: cache))
  ///
  /// Data tasks with a completion handler, a delegate or async get stored responses, if HTTP and the cache policies of
  /// request and configuration allow it. Uploads and WebSockets work as without the cache. A download task fails with
  /// `URLError.unsupportedURL`. All properties of the copy except `urlCache` and `protocolClasses` can be changed
  /// before a session is created with it.
  ///
  /// - Parameter cache: The cache for the responses; it becomes the copy's `urlCache`.
  public func caching(with cache: LMDBURLCache) -> URLSessionConfiguration {
    let copy = copied
    copy.urlCache = cache
    let others = (copy.protocolClasses ?? []).filter { $0 != CachingURLProtocol.self }
    // First in the list, because the built-in classes accept every request.
    copy.protocolClasses = [CachingURLProtocol.self] + others
    return copy
  }

  /// Whether there are protocol classes besides Foundation's and this library's.
  var hasOwnProtocolClasses: Bool {
    let others = (URLSessionConfiguration.ephemeral.protocolClasses ?? []) + [CachingURLProtocol.self]
    return (protocolClasses ?? []).contains { candidate in !others.contains { $0 == candidate } }
  }

  /// A copy of this configuration.
  var copied: URLSessionConfiguration {
    guard let copy = copy() as? URLSessionConfiguration else {
      preconditionFailure("A copy of a configuration is a configuration")
    }
    return copy
  }
}

extension LMDBURLCache {
  /// Makes `cache` the shared URL cache and enables caching in `URLSession.shared`.
  ///
  /// Call this before the process creates its first `URLSession`. That session registers Foundation's protocol classes,
  /// and `URLSession.shared` asks the classes in the order of their registration. Later calls replace the shared cache,
  /// but not for a `URLSession.shared` that is in use.
  public static func installShared(_ cache: LMDBURLCache) {
    URLCache.shared = cache
    _ = isRegistered
  }

  /// Registers the protocol class once; Foundation would ask a class twice that is registered twice.
  private static let isRegistered: Bool = URLProtocol.registerClass(CachingURLProtocol.self)
}
