import Foundation

extension URL {
  /// Returns the host of a URL, with the brackets of an IPv6 address; empty for a URL without one.
  static func hostName(in url: String) -> String {
    guard let start = url.range(of: "://")?.upperBound else { return "" }
    var authority = url[start...].prefix { $0 != "/" && $0 != "?" && $0 != "#" }
    if let user = authority.lastIndex(of: "@") { authority = authority[authority.index(after: user)...] }
    if authority.hasPrefix("["), let end = authority.firstIndex(of: "]") { return String(authority[...end]) }
    return String(authority.prefix { $0 != ":" })
  }
}
