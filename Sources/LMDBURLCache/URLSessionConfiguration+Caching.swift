import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

extension URLSessionConfiguration {
  /// A copy of this configuration whose sessions cache.
  ///
  ///     let session = URLSession(configuration: .default.caching(with: cache))
  ///
  /// Data tasks are answered from the cache where HTTP and the cache policies of request and configuration allow it, with
  /// completion handler, delegate or async. Uploads and WebSockets behave as without it; a download task ends with
  /// `URLError.unsupportedURL`. The copy may be changed further before a session is made of it, but for `urlCache` and `protocolClasses`.
  ///
  /// - Parameter cache: Where responses are looked up and stored. It becomes the copy's `urlCache`.
  public func caching(with cache: LMDBURLCache) -> URLSessionConfiguration {
    guard let copy = copy() as? URLSessionConfiguration else {
      preconditionFailure("A copy of a configuration is a configuration")
    }
    copy.urlCache = cache
    let others = (copy.protocolClasses ?? []).filter { $0 != CachingURLProtocol.self }
    // In front of the built-in classes, which would take every request.
    copy.protocolClasses = [CachingURLProtocol.self] + others
    return copy
  }
}

extension LMDBURLCache {
  /// Makes the cache `URLCache.shared`, and lets `URLSession.shared` cache with it.
  ///
  /// To be called before the process makes its first `URLSession`: the first one registers Foundation's own protocol
  /// classes, and `URLSession.shared` asks the classes in the order of their registration. Later calls exchange the shared
  /// cache, but not that of a `URLSession.shared` already in use.
  public static func installShared(_ cache: LMDBURLCache) {
    URLCache.shared = cache
    _ = isRegistered
  }

  /// Registered once; a class that is registered twice would be asked twice.
  private static let isRegistered: Bool = URLProtocol.registerClass(CachingURLProtocol.self)
}
