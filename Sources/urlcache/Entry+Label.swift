import Foundation
import LMDBURLCache

extension CacheDirectory.Entry {
  /// The URL's host in lowercase, with the brackets of an IPv6 address; empty for a URL without one.
  var host: String { URL.hostName(in: url) }

  /// The URL for a line of output, after the method unless that is GET.
  var label: String { Format.visible(method == "GET" ? url : "\(method) \(url)") }
}
