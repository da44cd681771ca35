/// The address of a redis-server, and the user that logs in.
package struct RedisServer: Sendable, Hashable {
  package enum Address: Sendable, Hashable {
    case tcp(host: String, port: UInt16)
    case unixSocket(path: String)
  }

  package var address: Address
  package var user: String?
  package var password: String?

  /// Parses `redis://[[user]:password@]host[:port]` or `unix://[[user]:password@]/path`. The password can be left out
  /// together with its colon.
  package init(url text: String) throws(RedisTierError) {
    func invalid(_ reason: String) -> RedisTierError { RedisTierError(.invalidConfiguration, reason) }
    guard let separator = text.firstRange(of: "://") else { throw invalid("the Redis URL has no scheme") }
    let scheme = text[..<separator.lowerBound].lowercased()
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
    }
    switch scheme {
    case "unix":
      guard rest.first == "/", rest.utf8.count > 1, rest.utf8.count < 108 else {
        throw invalid("the Redis URL has no absolute socket path of less than 108 bytes")
      }
      address = .unixSocket(path: String(rest))
    case "redis":
      // No database but 0: the permissions in the documentation do not include SELECT.
      if let slash = rest.firstIndex(of: "/") {
        guard ["/", "/0"].contains(rest[slash...]) else { throw invalid("only database 0 of Redis can be used") }
        rest = rest[..<slash]
      }
      address = try Self.tcpAddress(rest)
    case "rediss":
      throw invalid("hiredis has no TLS here; use a local TLS proxy with a Unix socket")
    default:
      throw invalid("the Redis URL needs the scheme redis or unix")
    }
  }

  private static func tcpAddress(_ text: Substring) throws(RedisTierError) -> Address {
    let host: Substring
    var port: UInt16? = 6379
    let portText: Substring
    if text.first == "[", let end = text.firstIndex(of: "]") {
      host = text[text.index(after: text.startIndex)..<end]
      portText = text[text.index(after: end)...]
    } else {
      host = text.prefix { $0 != ":" }
      portText = text.dropFirst(host.count)
    }
    if !portText.isEmpty { port = portText.first == ":" ? UInt16(portText.dropFirst()) : nil }
    guard !host.isEmpty, let port, port > 0, !host.utf8.contains(0) else {
      throw RedisTierError(.invalidConfiguration, "the Redis URL has no host or a malformed port")
    }
    return .tcp(host: String(host), port: port)
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
    switch address {
    case .tcp(let host, let port): "redis://\(host.contains(":") ? "[\(host)]" : host):\(port)"
    case .unixSocket(let path): "unix://\(path)"
    }
  }
}
