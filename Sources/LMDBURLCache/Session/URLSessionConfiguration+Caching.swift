import Foundation
import FoundationNetworking
import Synchronization

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
  package var hasOwnProtocolClasses: Bool {
    // `URLSession.shared` also has those that only Foundation registers, for which it has no list.
    (protocolClasses ?? []).contains {
      $0 != CachingURLProtocol.self && !String(reflecting: $0).hasPrefix("FoundationNetworking.")
    }
  }

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
  /// and `URLSession.shared` asks the classes in the order of their registration. A call that comes too late replaces
  /// `URLCache.shared`, and logs a line (``Options/log``), because `URLSession.shared` does not cache. Later calls
  /// replace the shared cache, but not for a `URLSession.shared` that is in use.
  public static func installShared(_ cache: LMDBURLCache) {
    URLCache.shared = cache
    guard !isAskedFirst else { return }
    cache.options.log(
      "LMDBURLCache: URLSession.shared does not cache, because the process has created a URLSession before "
        + "installShared. Call installShared before anything creates a URLSession, or use "
        + "URLSession(configuration: .default.caching(with: cache))")
  }

  /// Registers the protocol class once, and returns whether `URLSession.shared` asks it before Foundation's.
  ///
  /// Foundation would ask a class twice that is registered twice.
  private static let isAskedFirst: Bool = {
    _ = URLProtocol.registerClass(CachingURLProtocol.self)
    return RegistrationProbe.isAsked()
  }()
}

/// A protocol class that finds out whether classes that are registered now are asked before Foundation's own.
private final class RegistrationProbe: URLProtocol {
  private static let wasAsked = Atomic(false)
  private static let url = "data:,LMDBURLCache"

  override class func canInit(with request: URLRequest) -> Bool {
    if request.url?.absoluteString == url { wasAsked.store(true, ordering: .relaxed) }
    return false
  }

  /// Starts a task that loads an empty `data` URL, which Foundation does without a network.
  static func isAsked() -> Bool {
    _ = URLProtocol.registerClass(RegistrationProbe.self)
    defer { URLProtocol.unregisterClass(RegistrationProbe.self) }
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = nil
    // Without any class, Foundation asks all registered ones, like `URLSession.shared`.
    configuration.protocolClasses = []
    let session = URLSession(configuration: configuration)
    // The class is chosen before `resume` returns.
    URL(string: url).map { session.dataTask(with: $0).resume() }
    session.finishTasksAndInvalidate()
    return wasAsked.load(ordering: .relaxed)
  }
}
