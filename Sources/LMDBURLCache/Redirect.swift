import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Where a redirect leads (RFC 9110, section 15.4).
enum Redirect {
  /// The request that follows a response, or nil if it is no redirect.
  static func next(after status: Int, location: () -> String?, request: URLRequest) -> URLRequest? {
    guard [301, 302, 303, 307, 308].contains(status), let location = location(), let from = request.url,
      let target = URL(string: location, relativeTo: from)?.absoluteURL,
      let scheme = target.scheme?.lowercased(), scheme == "http" || scheme == "https"
    else { return nil }
    var next = request
    next.url = inheritingFragment(of: from, target)
    let method = request.httpMethod ?? "GET"
    if status == 303 && method != "HEAD" || (status == 301 || status == 302) && method == "POST" {
      next.httpMethod = "GET"
      next.httpBody = nil
      next.httpBodyStream = nil
      for name in ["Content-Type", "Content-Length", "Content-Encoding"] {
        next.setValue(nil, forHTTPHeaderField: name)
      }
    }
    // Whom the credentials were for, they were not for others. The session's cookies are chosen anew for each hop.
    if !isSameOrigin(from, target) {
      next.setValue(nil, forHTTPHeaderField: "Authorization")
      next.setValue(nil, forHTTPHeaderField: "Cookie")
    }
    return next
  }

  /// A target without a fragment takes that of the request (RFC 9110, section 10.2.2).
  private static func inheritingFragment(of from: URL, _ target: URL) -> URL {
    guard let fragment = from.fragment, target.fragment == nil else { return target }
    return URL(string: target.absoluteString + "#" + fragment) ?? target
  }

  private static func isSameOrigin(_ one: URL, _ other: URL) -> Bool {
    one.scheme?.lowercased() == other.scheme?.lowercased() && one.host?.lowercased() == other.host?.lowercased()
      && one.port == other.port
  }
}
