import Foundation
import HTTPCaching

extension Arguments {
  /// Returns the canonical form of the host in `--host`, as keys contain it; nil without the option.
  ///
  /// - Throws: `UsageError` for text that is not one host alone, which would match nothing.
  func host() throws -> String? {
    guard let text = value("host") else { return nil }
    guard !HostName.hasEmptyLabel(text), let host = HostName.canonical(text) else {
      throw UsageError(
        "--host takes one host alone, such as api.example.com, without a scheme or a port, not '\(text)'")
    }
    return host
  }
}

extension URL {
  /// Returns the canonical host of a URL that was requested, as ``Arguments/host()``.
  static func canonicalHostName(in url: String) -> String {
    let name = hostName(in: url)
    return HostName.canonical(name) ?? name
  }

  /// Returns the host of a URL, with the brackets of an IPv6 address; empty for a URL without one.
  static func hostName(in url: String) -> String {
    guard let start = url.range(of: "://")?.upperBound else { return "" }
    var authority = url[start...].prefix { $0 != "/" && $0 != "?" && $0 != "#" }
    if let user = authority.lastIndex(of: "@") { authority = authority[authority.index(after: user)...] }
    if authority.hasPrefix("["), let end = authority.firstIndex(of: "]") { return String(authority[...end]) }
    return String(authority.prefix { $0 != ":" })
  }
}
