import FoundationEssentials

/// A resource within a partition: what one invalidation hits, and what fetches in flight are filed under.
///
/// Two spellings of one URL must give one key, or an invalidation could miss a fetch: the scheme and host are lower-cased, the
/// default port, an empty path and the fragment are dropped (RFC 9110 section 4.2.3).
struct ResourceKey: Hashable, Sendable {
  /// Scheme, host and port.
  let origin: String
  /// Path and query.
  let target: String
  let partition: String

  init(url: URL, partition: String) {
    let text = url.absoluteString
    let withoutFragment = text[..<(text.firstIndex(of: "#") ?? text.endIndex)]
    guard let schemeEnd = withoutFragment.firstIndex(of: ":"),
      withoutFragment[schemeEnd...].hasPrefix("://")
    else {
      origin = ""
      target = String(withoutFragment)
      self.partition = partition
      return
    }
    let scheme = withoutFragment[..<schemeEnd].lowercased()
    let afterScheme = withoutFragment[withoutFragment.index(schemeEnd, offsetBy: 3)...]
    let targetStart = afterScheme.firstIndex { $0 == "/" || $0 == "?" } ?? afterScheme.endIndex
    var host = afterScheme[..<targetStart].lowercased()
    if let userEnd = host.lastIndex(of: "@") { host = String(host[host.index(after: userEnd)...]) }
    for port in Self.defaultPorts[scheme] ?? [] where host.hasSuffix(port) { host.removeLast(port.count) }
    origin = scheme + "://" + host
    let rest = afterScheme[targetStart...]
    target = rest.hasPrefix("/") ? String(rest) : "/" + rest
    self.partition = partition
  }

  /// The URL; nil for a key that is none.
  var url: URL? { URL(string: origin + target) }

  /// Whether responses can be stored under it: http or https, with a host (RFC 9110 section 4.2).
  var isKeyable: Bool {
    (origin.hasPrefix("http://") && origin.utf8.count > 7) || (origin.hasPrefix("https://") && origin.utf8.count > 8)
  }

  private static let defaultPorts = ["http": [":80", ":"], "https": [":443", ":"]]
}

/// What one fetch can be shared under: nothing that differs here can use the other's result.
///
/// The Authorization value is part of it because a response to one value is never given to another; so nobody waits for a
/// result that he cannot use.
struct SharingKey: Hashable, Sendable {
  let resource: ResourceKey
  let authorization: String?
}
