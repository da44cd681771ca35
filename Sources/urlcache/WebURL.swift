import Foundation
import LMDBURLCache

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

extension CacheDirectory.Entry {
  /// The URL's host in lowercase, with the brackets of an IPv6 address; empty for a URL without one.
  var host: String { URL.hostName(in: url) }

  /// The URL for a line of output, after the method unless that is GET.
  var label: String { Format.visible(method == "GET" ? url : "\(method) \(url)") }
}
