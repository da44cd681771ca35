import Glibc

extension CurlTransport {
  /// The immutable settings of a transport.
  ///
  ///     var configuration = CurlTransport.Configuration()
  ///     configuration.timeout = .seconds(20)
  ///     let transport = CurlTransport(configuration)
  public struct Configuration: Sendable, Hashable {
    // MARK: Limits

    /// The maximum number of requests in progress at one origin (scheme, host and port); 64 by default, at least 1.
    ///
    /// Each takes a connection. Further requests wait in the origin's queue, within their timeout. A response that
    /// waits for a slow reader keeps its connection, but is not in progress, so that it does not delay other requests.
    /// Use a lower value for an origin that requires fewer connections.
    public var maximumConnectionsPerOrigin = 64

    /// The number of requests in progress at all origins from which on each origin gets only its share; 256 by default,
    /// at least 1. Also the maximum number of idle connections.
    ///
    /// The share of an origin is an eighth of ``maximumConnectionsPerOrigin``, at least one request. Other origins
    /// cannot use it up, even if they do not respond. Shares, and responses that wait for slow readers, can raise the
    /// number of used connections above this value.
    ///
    /// Connections, in use and idle, take at most half of the process's limit of descriptors (`RLIMIT_NOFILE`) at the
    /// first request. From there on, and while the process has no descriptor left, idle connections are closed for new
    /// ones. If there are none, requests wait, within their timeout.
    ///
    /// A connection with its request takes about 20 KB of memory, or 80 KB with TLS, and up to 272 KB more while its
    /// reader is slow. Raise this, and the process's limit of descriptors, for a server that uses many slow origins.
    public var maximumConnections = 256

    // MARK: Times

    /// The maximum time without progress of a request without its own limit; 60 seconds by default, as in `URLSession`.
    ///
    /// Each sent or received part restarts the time. Time in the queue and for connecting counts. Time in which the
    /// response waits for a slow reader does not.
    public var timeout: Duration = .seconds(60)

    /// The maximum time for name lookup, connecting and the TLS handshake; 30 seconds by default.
    ///
    /// Use a lower value if another server could respond instead.
    public var connectTimeout: Duration = .seconds(30)

    /// The time for which an idle connection can be reused; 60 seconds by default, in whole seconds.
    ///
    /// Use a lower value than the idle timeout of the origin or a load balancer. A transport that has been idle for
    /// this time closes all of its connections.
    public var idleConnectionTimeout: Duration = .seconds(60)

    /// The maximum age of a connection for reuse; 10 minutes by default, in whole seconds.
    ///
    /// A new connection looks up the name again. Use a lower value if names change their addresses within minutes.
    public var maximumConnectionAge: Duration = .seconds(600)

    // MARK: TLS

    /// A file with the trusted certificates in PEM format; nil, the default, trusts the system's certificates.
    ///
    /// Set this for servers or proxies with certificates of a private authority.
    public var certificateAuthorityFile: String?

    /// The certificate that identifies the client; none by default.
    ///
    /// An origin may send each client another response. The partition of an `LMDBURLCache` therefore begins with a
    /// digest of the certificate's file. If you use the transport with a caching client of your own, add one to the
    /// partition of your requests, unless the cache has only this client.
    public var clientCertificate: ClientCertificate?

    /// A certificate and its key, each in a file in PEM format.
    public struct ClientCertificate: Sendable, Hashable {
      /// The path of the certificate. Certificates of intermediate authorities can follow it in the file.
      public var certificateFile: String
      /// The path of the private key.
      public var keyFile: String
      /// The password of the key; nil if it has none.
      public var keyPassword: String?

      /// Creates a client certificate.
      public init(certificateFile: String, keyFile: String, keyPassword: String? = nil) {
        self.certificateFile = certificateFile
        self.keyFile = keyFile
        self.keyPassword = keyPassword
      }
    }

    // MARK: Proxy

    /// The proxy for requests; from the environment by default, like `URLSession` on Linux.
    public var proxy = Proxy.environment

    /// The choice of a proxy.
    public enum Proxy: Sendable, Hashable {
      /// The variables `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, read when a request starts.
      case environment
      /// No proxy, regardless of the environment.
      case none
      /// A proxy URL with the scheme `http`, `https`, `socks5` or `socks5h`, for all hosts except `bypassing`.
      ///
      /// A host name in `bypassing` includes its subdomains.
      case server(String, bypassing: [String] = [])
    }

    // MARK: Content

    /// Whether `gzip` and `deflate` content is requested and decoded; true by default.
    ///
    /// Requests without `Accept-Encoding` and `Range` are then sent with `Accept-Encoding: gzip, deflate`. Content in
    /// other codings is not decoded. Set this to false to store and serve encoded content.
    public var decodesContent = true

    /// The maximum ratio of decoded to encoded size; 200 by default, at least 1.
    ///
    /// Only decoded content above 16 MiB is checked. The limit protects against content crafted to fill the memory,
    /// which can expand up to 1,000 times. Text rarely expands more than 50 times.
    public var maximumExpansionFactor = 200

    /// Creates the default settings.
    public init() {}
  }
}

extension CurlTransport.Configuration.Proxy {
  /// Whether the connection to the proxy may use TLS.
  package var mayUseTLS: Bool {
    switch self {
    case .environment:
      ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"].contains { (name: String) in
        getenv(name).map { Self.usesTLS(String(cString: $0)) } ?? false
      }
    case .none: false
    case .server(let url, _): Self.usesTLS(url)
    }
  }

  /// Whether requests for `http` URLs may be sent to a proxy.
  var mayBeUsedForHTTP: Bool {
    switch self {
    case .environment: ["http_proxy", "all_proxy", "ALL_PROXY"].contains { (name: String) in getenv(name) != nil }
    case .none: false
    case .server: true
    }
  }

  private static func usesTLS(_ url: String) -> Bool { url.lowercased().hasPrefix("https:") }
}
