/// The certificates of connections to Redis by TLS.
///
/// The certificate of the server is always verified. The files are read for each connection, so that renewed ones are
/// used without a restart.
public struct RedisTLS: Sendable, Hashable {
  /// A file with the trusted certificates in PEM format; nil, the default, trusts the system's certificates.
  public var certificateAuthorityFile: String?

  /// The certificate that identifies this machine; none by default.
  public var clientCertificate: ClientCertificate?

  /// The name that the certificates of the servers must have; nil, the default, is the host that is connected to.
  ///
  /// Set this for certificates with names of servers that are connected to by their addresses, as Sentinels usually
  /// tell them. It is also sent to the server (SNI), unless it is an IP address.
  public var serverName: String?

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

  /// Creates settings that trust the system's certificates.
  public init() {}
}
