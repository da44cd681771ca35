import Foundation
import FoundationNetworking
import HTTPCaching

/// Redirects (RFC 9110, section 15.4).
enum Redirect {
  /// Returns the request that a redirect leads to; nil if the response is not a redirect.
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
    // Do not send one origin's credentials or host name to another. The session's cookies are selected again for each
    // hop.
    if Invalidation.origin(of: from) != Invalidation.origin(of: target) {
      for name in ["Authorization", "Proxy-Authorization", "Cookie", "Host"] {
        next.setValue(nil, forHTTPHeaderField: name)
      }
    }
    return next
  }

  /// Returns the target, with the request's fragment if it has none (RFC 9110, section 10.2.2).
  private static func inheritingFragment(of from: URL, _ target: URL) -> URL {
    guard let fragment = from.fragment, target.fragment == nil else { return target }
    return URL(string: target.absoluteString + "#" + fragment) ?? target
  }
}
