import CachingClient
import CurlTransport
import Foundation
import HTTPCaching
import LMDB
import ResponseStore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

extension LMDBURLCache {
  /// The choices that hold for the life of a cache.
  public struct Options: Sendable {
    /// How HTTP's rules are read: as a private cache by default, as a shared one with `caching.mode = .shared`.
    public var caching = CachingOptions()
    /// What keeps the entries of one user or tenant apart from another's: called with each request, its answer is part of
    /// the key. The default gives all the same, empty partition.
    ///
    /// Called on whatever thread asks or stores, several times for one request, so it should be quick and always give the
    /// same answer for it.
    ///
    ///     options.partition = { $0.value(forHTTPHeaderField: "X-Tenant") ?? "" }
    public var partition: @Sendable (URLRequest) -> String = { _ in "" }
    /// Where the caller knows better than the server: called with each request, what it returns holds for its answer. It may
    /// force a lifetime, ignore fields of the response, and leave query parameters out of the key. None by default.
    ///
    ///     options.overrides = { request in
    ///       request.url?.host == "api.example.com" ? .init(lifetime: 60, ignoredQueryParameters: ["token"]) : .init()
    ///     }
    public var overrides: (@Sendable (URLRequest) -> RequestOverrides)?
    /// The size in bytes of the largest body that sessions and ``LMDBURLCache/LMDBURLCache/data(for:)`` store; 64 MiB by
    /// default. Values below 0 count as 0.
    ///
    /// A body is held in memory until it is stored. One beyond this size, or beyond 5% of the larger of the two capacities, is
    /// handed on as it comes, and not held. Bodies stored by hand, with `storeCachedResponse(_:for:)`, are not limited by this.
    public var maximumStoredBodyByteCount = 64 << 20
    /// What carries the requests of ``LMDBURLCache/data(for:)`` and ``LMDBURLCache/load(_:)`` to the origin.
    ///
    /// Nil, the default, stands for sessions with Foundation's default configuration, whose cookies and credentials all
    /// callers in the process share. A shared cache (`caching.mode = .shared`) then sends and keeps neither: they are
    /// one user's, and its requests come from many. A configuration given here is taken as it is, with its cookie
    /// storage.
    ///
    ///     options.transport = .urlSession(configuration)
    ///     options.transport = .curl(CurlTransport.Configuration())
    ///
    /// libcurl carries many times more requests per second than sessions, which all share one queue. It follows no
    /// challenge, so that a 401 is the response, and stores nothing whose end is not proven. Cookies are sent and kept as
    /// with nil.
    public var transport: Transport? {
      didSet { transport = transport?.copied }
    }
    /// Whether the directory may be a symbolic link or belong to another user. False by default.
    public var allowsUntrustedDirectory = false
    /// Whether checksums are compared at every read from disk, not only at a record's first in this process. False by
    /// default; true costs a pass over head and body at each read.
    public var verifiesEveryRead = false
    /// What tells the time. The system's clock by default.
    public var clock: @Sendable () -> Date = { Date() }
    /// Gets a line for each kind of trouble; no line holds a query, a header value or a body. Standard error by
    /// default; a line is dropped when standard error is closed, full or has no reader. Called on the thread that met
    /// the trouble; it must not use the cache.
    public var log: @Sendable (String) -> Void = { line in StandardError.writeLine(line) }

    /// Options at their defaults.
    public init() {}

    /// What carries requests to the origin.
    public enum Transport: Sendable {
      /// Sessions of the cache's own with this configuration. Changes that are made to it later do not count.
      case urlSession(URLSessionConfiguration)
      /// libcurl, with these settings. Requests with content from a stream, and with user information in their URL, go over
      /// sessions with Foundation's default configuration all the same.
      case curl(CurlTransport.Configuration)

      fileprivate var copied: Transport {
        switch self {
        case .curl: self
        case .urlSession(let configuration):
          .urlSession(configuration.copy() as? URLSessionConfiguration ?? configuration)
        }
      }
    }

    /// The configuration of loads without a session.
    var loadConfiguration: URLSessionConfiguration {
      if case .urlSession(let configuration)? = transport { return configuration }
      let configuration = URLSessionConfiguration.default
      guard caching.mode == .shared else { return configuration }
      configuration.httpCookieStorage = nil
      configuration.httpShouldSetCookies = false
      configuration.httpCookieAcceptPolicy = .never
      configuration.urlCredentialStorage = nil
      return configuration
    }

    /// How loads without a session go over libcurl; nil if they go over a session.
    var curlConfiguration: CurlTransport.Configuration? {
      if case .curl(let configuration)? = transport { configuration } else { nil }
    }

    func storeOptions(diskCapacity: Int) -> ResponseStore.Options {
      var options = ResponseStore.Options(capacityByteCount: diskCapacity)
      options.clock = clock
      options.allowsUntrustedDirectory = allowsUntrustedDirectory
      options.verifiesEveryRead = verifiesEveryRead
      options.letsGoWhenGivenUp = true
      options.log = log
      return options
    }
  }
}
