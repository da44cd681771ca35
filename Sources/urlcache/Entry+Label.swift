import Foundation
import LMDBURLCache

extension CacheDirectory.Entry {
  /// The URL's host in lowercase, with the brackets of an IPv6 address; empty for a URL without one.
  var host: String { URL.hostName(in: url) }

  /// The URL for a line of output, after the method unless that is GET, and before the content of a query.
  var label: String {
    let content = queryContent.map { " " + QueryContentText.short(digest: $0.digest, byteCount: $0.byteCount) } ?? ""
    return Format.visible(method == "GET" ? url : "\(method) \(url)") + content
  }
}
