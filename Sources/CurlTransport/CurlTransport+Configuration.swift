extension CurlTransport {
  /// The settings of a transport, which do not change once it is made.
  ///
  ///     var configuration = CurlTransport.Configuration()
  ///     configuration.timeout = .seconds(20)
  ///     let transport = CurlTransport(configuration)
  public struct Configuration: Sendable, Hashable {
    // MARK: Limits

    /// The maximum number of requests under way to one origin (scheme, host and port); 64 by default. Values below 1
    /// count as 1.
    ///
    /// Each takes a connection. Further requests wait in the origin's own queue, within their time limit. Lower it for
    /// an origin that asks for fewer connections.
    public var maximumConnectionsPerOrigin = 64

    /// The maximum number of requests under way to all origins, and of connections kept open; 256 by default. Values
    /// below 1 count as 1.
    ///
    /// A connection with its request takes about 20 KB of memory, with TLS 80 KB. Raise it, and the process's limit of
    /// descriptors, for a server that speaks to many slow origins.
    public var maximumConnections = 256

    // MARK: Times

    /// How long a request waits while nothing comes, if it sets no limit of its own; 60 seconds by default, as
    /// `URLSessionConfiguration.timeoutIntervalForRequest`.
    ///
    /// Each piece that comes or goes begins the time anew. Time in the queue and for connecting counts; time in which
    /// the response waits for a slow reader does not.
    public var timeout: Duration = .seconds(60)

    /// How long looking up the name, connecting and the TLS handshake may take together; 30 seconds by default.
    ///
    /// Lower it where another server could answer instead.
    public var connectTimeout: Duration = .seconds(30)

    /// How long a connection without a request may be used again; 60 seconds by default, in whole seconds.
    ///
    /// Set it below the time after which the origin, or a load balancer, drops idle connections. When a transport has
    /// been idle for this long it closes all of its connections.
    public var idleConnectionTimeout: Duration = .seconds(60)

    /// How long a connection may be used again since it was made; 10 minutes by default, in whole seconds.
    ///
    /// A new connection looks up the name again: lower it where names move to other addresses within minutes.
    public var maximumConnectionAge: Duration = .seconds(600)

    // MARK: TLS

    /// A file of certificates in PEM format that are trusted instead of the system's; nil, the default, trusts the
    /// system's.
    ///
    /// Set it for servers with certificates of an authority of your own.
    public var certificateAuthorityFile: String?

    /// The certificate by which the client identifies itself; none by default.
    public var clientCertificate: ClientCertificate?

    /// A certificate and its key, each in a file in PEM format.
    public struct ClientCertificate: Sendable, Hashable {
      /// The path of the certificate, followed in its file by the certificates of intermediate authorities, if any.
      public var certificateFile: String
      /// The path of the private key.
      public var keyFile: String
      /// The password of the key; nil if it has none.
      public var keyPassword: String?

      /// A certificate and its key.
      public init(certificateFile: String, keyFile: String, keyPassword: String? = nil) {
        self.certificateFile = certificateFile
        self.keyFile = keyFile
        self.keyPassword = keyPassword
      }
    }

    // MARK: Proxy

    /// Through which proxy requests go; by default what the environment says, as with `URLSession` on Linux.
    public var proxy = Proxy.environment

    /// The choice of a proxy.
    public enum Proxy: Sendable, Hashable {
      /// What the variables `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` say when a request starts.
      case environment
      /// No proxy, whatever the environment says.
      case none
      /// The proxy at a URL with the scheme `http`, `https`, `socks5` or `socks5h`, for all hosts but those bypassed. A
      /// host name bypasses itself and its subdomains.
      case server(String, bypassing: [String] = [])
    }

    // MARK: Content

    /// Whether `gzip` and `deflate` content is asked for and decoded; true by default.
    ///
    /// If so, requests without an `Accept-Encoding` and a `Range` field are sent with `Accept-Encoding: gzip, deflate`.
    /// Other codings are delivered as they came. Set it to false to store and serve content as it is encoded.
    public var decodesContent = true

    /// How many times larger than it came decoded content may become; 200 by default. Only counts beyond 16 MiB of
    /// decoded content. Values below 1 count as 1.
    ///
    /// Protects against content that was made to fill the memory, which grows up to 1,000 times. Text rarely exceeds
    /// 50.
    public var maximumExpansionFactor = 200

    /// The settings at their defaults.
    public init() {}
  }
}
