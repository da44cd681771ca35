/// The address of a redis-server, or of the Sentinels that know it, and the user that logs in.
package struct RedisServer: Sendable, Hashable {
  package enum Address: Sendable, Hashable {
    case tcp(host: String, port: UInt16)
    case unixSocket(path: String)

    /// The URL without user and password.
    func url(usesTLS: Bool) -> String {
      switch self {
      case .tcp: "\(usesTLS ? "rediss" : "redis")://\(name)"
      case .unixSocket(let path): "unix://\(path)"
      }
    }

    /// The address without a scheme.
    var name: String {
      switch self {
      case .tcp(let host, let port): "\(host.contains(":") ? "[\(host)]" : host):\(port)"
      case .unixSocket(let path): path
      }
    }
  }

  /// The address of the server; with ``primaryName``, those of its Sentinels.
  package let addresses: [Address]
  /// The name by which Sentinels know the server; nil for one that is connected to by its address.
  package let primaryName: String?
  /// Whether connections to the server, and to Sentinels, are encrypted.
  package let usesTLS: Bool
  package let user: String?
  package let password: String?
  private let scheme: String

  /// Parses one of these. The user, the password and the ports can be left out.
  ///
  ///     redis://user:password@host:6379
  ///     redis+sentinel://user:password@host:26379,host:26379/name
  ///     unix://user:password@/path
  ///
  /// With `rediss` instead of `redis`, connections use TLS.
  package init(url text: String) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    guard let separator = text.firstRange(of: "://") else { throw invalid("the Redis URL has no scheme") }
    scheme = text[..<separator.lowerBound].lowercased()
    var rest = text[separator.upperBound...]
    let authorityEnd = scheme == "unix" ? rest.firstRange(of: "@/")?.upperBound : nil
    if let at = authorityEnd.map({ rest.index($0, offsetBy: -2) })
      ?? (scheme == "unix" ? nil : rest.lastIndex(of: "@"))
    {
      let login = rest[..<at].split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
      let parts = login.map { Self.decodingPercents($0) }
      guard !parts.contains(nil), parts.count == 2 || parts[0]?.isEmpty == false else {
        throw invalid("the Redis URL has a malformed user or password")
      }
      user = parts[0].flatMap { $0.isEmpty ? nil : $0 }
      password = parts.count == 2 ? parts[1] : nil
      rest = rest[rest.index(after: at)...]
    } else {
      (user, password) = (nil, nil)
    }
    usesTLS = scheme.hasPrefix("rediss")
    let path = rest[(rest.firstIndex(of: "/") ?? rest.endIndex)...]
    let authority = rest[..<path.startIndex]
    switch scheme {
    case "unix":
      guard rest.first == "/", rest.utf8.count > 1, rest.utf8.count < 108 else {
        throw invalid("the Redis URL has no absolute socket path of less than 108 bytes")
      }
      addresses = [.unixSocket(path: String(rest))]
      primaryName = nil
    case "redis", "rediss":
      // No database but 0: the permissions in the documentation do not include SELECT.
      guard ["", "/", "/0"].contains(path) else { throw invalid("only database 0 of Redis can be used") }
      addresses = [try Self.tcpAddress(authority, defaultPort: 6379)]
      primaryName = nil
    case "redis+sentinel", "rediss+sentinel":
      guard let name = Self.decodingPercents(path.dropFirst()), !name.isEmpty, !name.contains("/") else {
        throw invalid("the Redis URL does not end with / and the name of the primary in its Sentinels")
      }
      var addresses: [Address] = []
      for host in authority.split(separator: ",", omittingEmptySubsequences: false) {
        addresses.append(try Self.tcpAddress(host, defaultPort: 26379))
      }
      guard Set(addresses).count == addresses.count else { throw invalid("the Redis URL names a Sentinel twice") }
      self.addresses = addresses
      primaryName = name
    default:
      throw invalid("the Redis URL needs the scheme redis, rediss, redis+sentinel, rediss+sentinel or unix")
    }
  }

  private static func tcpAddress(_ text: Substring, defaultPort: UInt16) throws(RedisTierError) -> Address {
    let host: Substring
    var port: UInt16? = defaultPort
    let portText: Substring
    if text.first == "[", let end = text.firstIndex(of: "]") {
      host = text[text.index(after: text.startIndex)..<end]
      portText = text[text.index(after: end)...]
    } else {
      host = text.prefix { $0 != ":" }
      portText = text.dropFirst(host.count)
    }
    if !portText.isEmpty { port = portText.first == ":" ? UInt16(portText.dropFirst()) : nil }
    guard let port, let address = Address(host: String(host), port: port) else {
      throw RedisTierError(.invalidConfiguration, "the Redis URL has no host or a malformed port")
    }
    return address
  }

  private static func decodingPercents(_ text: Substring) -> String? {
    var bytes: [UInt8] = []
    var source = text.utf8.makeIterator()
    while let byte = source.next() {
      guard byte == UInt8(ascii: "%") else {
        bytes.append(byte)
        continue
      }
      guard let high = source.next(), let low = source.next(),
        let value = UInt8(String(decoding: [high, low], as: UTF8.self), radix: 16)
      else { return nil }
      bytes.append(value)
    }
    return String(validating: bytes, as: UTF8.self)
  }

  /// The address without user and password.
  package var name: String {
    "\(scheme)://" + addresses.map(\.name).joined(separator: ",") + (primaryName.map { "/\($0)" } ?? "")
  }

  /// Tells the server from others. Sentinels can be added and removed.
  package var identity: String { primaryName.map { "sentinel/\($0)" } ?? name }
}

extension RedisServer.Address {
  /// A TCP address; nil if it has no host or port.
  init?(host: String, port: UInt16) {
    guard !host.isEmpty, !host.utf8.contains(0), port > 0 else { return nil }
    self = .tcp(host: host, port: port)
  }
}
