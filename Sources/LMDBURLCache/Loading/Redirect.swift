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
    if leavesOrigin(of: request, next) {
      for name in fieldsForOneOrigin { next.setValue(nil, forHTTPHeaderField: name) }
    }
    return next
  }

  /// The fields that must not be sent to another origin: credentials, and the name of the host.
  private static let fieldsForOneOrigin = ["Authorization", "Proxy-Authorization", "Cookie", "Host"]

  /// Whether a field must not be sent to another origin.
  static func isForOneOrigin(_ name: String) -> Bool {
    fieldsForOneOrigin.contains { $0.equalsIgnoringCase(name) }
  }

  /// Whether two requests have different origins.
  static func leavesOrigin(of request: URLRequest, _ next: URLRequest) -> Bool {
    request.url.flatMap { Invalidation.origin(of: $0) } != next.url.flatMap { Invalidation.origin(of: $0) }
  }

  /// Returns the target, with the request's fragment if it has none (RFC 9110, section 10.2.2).
  private static func inheritingFragment(of from: URL, _ target: URL) -> URL {
    guard let fragment = from.fragment, target.fragment == nil else { return target }
    return URL(string: target.absoluteString + "#" + fragment) ?? target
  }
}
