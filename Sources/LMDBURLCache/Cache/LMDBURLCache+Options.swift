public import CachingClient
import CachingStorage
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDB
import ResponseStore
import SystemFiles

extension LMDBURLCache {
  /// Options that are fixed for the life of a cache.
  public struct Options: Sendable {
    /// The rules of HTTP to apply: those of a private cache by default, of a shared one with `caching.mode = .shared`.
    public var caching = CachingOptions()
    /// The time after which a stale response is served while the origin does not respond: `caching.staleAfter`.
    public var staleAfter: Duration? {
      get { caching.staleAfter }
      set { caching.staleAfter = newValue }
    }
    /// The time without progress after which a request no longer waits for the fetch of an equal one:
    /// `caching.coalescingTimeout`.
    public var coalescingTimeout: Duration? {
      get { caching.coalescingTimeout }
      set { caching.coalescingTimeout = newValue }
    }
    /// Returns the partition of a request, for example a tenant ID; it is part of the cache key.
    ///
    /// Responses are never served across partitions. By default all requests have the same, empty partition. With a
    /// client certificate (`CurlTransport.Configuration.clientCertificate`) the partition begins with a digest of the
    /// certificate's file, so that caches with different ones can use one directory. The digest is made when the cache
    /// is opened, and what this closure returns follows it: `client-certificate:DIGEST:` and the closure's text.
    ///
    /// The closure must be fast and deterministic. If ``rules`` name a partition field, its value becomes a part of the
    /// partition, too. It is called from any thread: once per load, and twice per task of a
    /// session, because Foundation asks the cache first.
    ///
    ///     options.partition = { $0.value(forHTTPHeaderField: "X-Tenant") ?? "" }
    public var partition: @Sendable (URLRequest) -> String = { _ in "" } {
      didSet { hasOwnPartition = true }
    }
    /// Whether the program has set ``partition``.
    private(set) var hasOwnPartition = false
    /// Rules for hosts, paths and media types; none by default.
    ///
    /// They can force a lifetime, ignore response fields, omit query parameters from the cache key, forbid storing and
    /// coalescing, and separate the values of a request field. <doc:RulesAsData> describes their form in a JSON file.
    ///
    ///     options.rules = try CachingRules(contentsOf: URL(fileURLWithPath: "/etc/example/caching-rules.json"))
    public var rules = CachingRules()
    /// Returns overrides for a request, for what ``rules`` cannot say; none by default.
    ///
    /// They apply like one more rule, after all others: what they set replaces what the rules set, and the rest of the
    /// rules stays. Called as often as ``partition``.
    ///
    ///     options.overrides = { request in
    ///       request.url?.host == "api.example.com" ? .init(lifetime: 60, ignoredQueryParameters: ["token"]) : .init()
    ///     }
    public var overrides: (@Sendable (URLRequest) -> RequestOverrides)?
    /// The maximum size in bytes of a body that sessions and ``LMDBURLCache/LMDBURLCache/data(for:)`` store; no limit
    /// of its own by default.
    ///
    /// In any case it is a quarter of the disk capacity, or 5% of the memory capacity if that is more. Values below 0
    /// count as 0. A body of more than 1 MiB is written to disk while it arrives. A larger one than this is streamed to
    /// the caller and not stored. `storeCachedResponse(_:for:)` ignores this limit.
    ///
    /// A session whose delegate is a `URLSessionDataDelegate`, and a subclass of the cache, receive the body in memory
    /// before it is stored: at most 64 MiB for a delegate, and 5% of the larger capacity for a subclass.
    public var maximumStoredBodyByteCount = Int.max
    /// The transport of all loads: those of sessions that cache, ``LMDBURLCache/data(for:)``,
    /// ``LMDBURLCache/load(_:)`` and ``LMDBURLCache/bytes(for:)``.
    ///
    /// The default is libcurl with its default settings. A session's configuration replaces their timeout and number of
    /// connections to an origin.
    ///
    ///     options.transport = .curl(configuration)        // module CurlTransport
    ///     options.transport = .urlSession(configuration)
    ///
    /// libcurl sends many times more requests per second than sessions, which all share one queue in Foundation on
    /// Linux, and withstands malformed responses. <doc:Transports> lists the differences.
    public var transport = Transport.curl(CurlTransport.Configuration()) {
      didSet { transport = transport.copied }
    }
    /// Whether requests over libcurl send the cookies of `HTTPCookieStorage.shared` and store received ones there.
    ///
    /// With nil, the default, requests of a private cache do, as with `URLSession.shared`. Requests of a shared cache
    /// (`caching.mode = .shared`) do not, because they come from many users and the cookies belong to one. With
    /// ``Transport/urlSession(_:)`` the configuration decides.
    public var usesProcessCookies: Bool?
    /// The storage whose credentials answer the challenges to loads without a session; nil, the default, for none.
    ///
    /// A load without a session may be for anyone. The 401 is then the response, unless the request has the
    /// credentials. With a storage, the default credential that the program has put in for the challenge's protection
    /// space is sent for all of these loads. The storage of a configuration in ``Transport/urlSession(_:)`` is not
    /// used. Loads of a session use the storage of its configuration.
    ///
    ///     options.credentialStorage = .shared
    public var credentialStorage: URLCredentialStorage?
    /// Whether requests over libcurl have cookies of their own, in memory, instead of those of the process.
    package var keepsCookiesInMemory = false
    /// Whether the mode is recorded in the directory, for tools; true by default. A tool does not count as a program.
    package var recordsMode = true
    /// The tier that the caches of several machines share; none by default.
    ///
    ///     options.fleet = try RedisTier(url: "redis://10.0.0.5:6379", secret: secret)   // product RedisTier
    ///
    /// Purges then hold on all machines, and a machine that cannot learn of purges validates each response. The cache
    /// needs a disk tier. <doc:RunningAFleet> describes the promise and the set-up.
    public var fleet: (any FleetTier)?
    /// Whether the directory may be a symbolic link or belong to another user. False by default.
    public var allowsUntrustedDirectory = false
    /// Whether every read from disk verifies the checksums; false by default.
    ///
    /// If false, only a process's first read of a record does. If true, each read costs a pass over header and body.
    public var verifiesEveryRead = false
    /// Returns the time; the system clock by default.
    public var clock: @Sendable () -> Date = { Date() }
    /// Receives one line per kind of error; no line contains a query, header value or body.
    ///
    /// Standard error by default. A line is dropped if standard error is closed, full or has no reader. Called on the
    /// thread that met the error; it must not use the cache.
    public var log: @Sendable (String) -> Void = { line in StandardError.writeLine(line) }

    /// Creates options with their default values.
    public init() {}

    /// A transport of requests to the origin.
    public enum Transport: Sendable {
      /// The cache's own sessions with a copy of this configuration, including its cookie storage, but not its
      /// credential storage (see ``Options/credentialStorage``).
      ///
      /// Later changes to the configuration have no effect.
      case urlSession(URLSessionConfiguration)
      /// libcurl with these settings.
      ///
      /// Requests with a body stream use a session with Foundation's default configuration instead.
      case curl(CurlTransport.Configuration)

      fileprivate var copied: Transport {
        switch self {
        case .curl: self
        case .urlSession(let configuration): .urlSession(configuration.copied)
        }
      }
    }

    /// The session configuration of loads without a session.
    var loadConfiguration: URLSessionConfiguration {
      if case .urlSession(let configuration) = transport {
        let copy = configuration.copied
        copy.urlCredentialStorage = credentialStorage
        return copy
      }
      let configuration = URLSessionConfiguration.default
      configuration.urlCredentialStorage = credentialStorage
      let isShared = caching.mode == .shared
      if keepsCookiesInMemory {
        configuration.httpCookieStorage = URLSessionConfiguration.ephemeral.httpCookieStorage
        return configuration
      }
      guard !(usesProcessCookies ?? !isShared) else { return configuration }
      configuration.httpCookieStorage = nil
      configuration.httpShouldSetCookies = false
      configuration.httpCookieAcceptPolicy = .never
      return configuration
    }

    /// The codings that the transport removes from content.
    var contentDecoding: ContentDecoding {
      guard case .curl(let configuration) = transport else { return .all }
      return configuration.decodesContent ? .gzipAndDeflate : .none
    }

    /// Whether loads use libcurl. For each load, this takes less than ``curlConfiguration``, which copies the settings.
    var usesCurl: Bool {
      if case .curl = transport { true } else { false }
    }

    /// The libcurl settings; nil if loads use a session.
    var curlConfiguration: CurlTransport.Configuration? {
      if case .curl(let configuration) = transport { configuration } else { nil }
    }

    /// The options of the cache without Foundation's types.
    var ofStorage: ResponseCache.Options {
      var options = ResponseCache.Options()
      options.caching = caching
      options.maximumStoredBodyByteCount = maximumStoredBodyByteCount
      options.fleet = fleet
      options.allowsUntrustedDirectory = allowsUntrustedDirectory
      options.verifiesEveryRead = verifiesEveryRead
      options.clock = clock
      options.log = log
      options.recordsMode = recordsMode
      return options
    }
  }
}
