import Foundation
import LMDBURLCache

extension URL {
  /// Whether the URL is an absolute http or https URL with a host.
  var isWeb: Bool {
    ["http", "https"].contains(scheme?.lowercased()) && !(host ?? "").isEmpty
  }
}

extension CacheDirectory.Entry {
  /// The URL's host in lowercase, with the brackets of an IPv6 address; empty for a URL without one.
  var host: String {
    guard let start = url.range(of: "://")?.upperBound else { return "" }
    let authority = url[start...].prefix { $0 != "/" && $0 != "?" }
    if authority.hasPrefix("["), let end = authority.firstIndex(of: "]") { return String(authority[...end]) }
    return String(authority.prefix { $0 != ":" })
  }
}
