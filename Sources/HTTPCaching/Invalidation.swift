#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// What an answer to an unsafe request makes invalid (RFC 9111, 4.4; RFC 9875, 3).
public struct Invalidation: Sendable, Hashable {
  /// The target URI and, on the same origin, those in `Location` and `Content-Location`. Every variant goes.
  public let urls: [URL]
  /// The groups named by `Cache-Group-Invalidation`, of `origin`.
  public let groups: [String]
  /// `scheme://host:port` of the target URI, lower case, port always written; empty if it has no host.
  public let origin: String

  /// Whether nothing becomes invalid.
  public var isEmpty: Bool { urls.isEmpty && groups.isEmpty }

  /// What the answer to `request` makes invalid; empty for safe methods and for answers other than 2xx and 3xx. A method
  /// that is not known to be safe counts as unsafe.
  public static func targets(request: RequestHead, response: ResponseHead) -> Invalidation {
    let origin = origin(of: request.url) ?? ""
    // 9111 4.4: a non-error answer to an unsafe method. 9875 3: on safe methods the field is ignored.
    guard !isSafe(request.method), (200..<400).contains(response.status) else {
      return Invalidation(urls: [], groups: [], origin: origin)
    }
    var urls = [request.url]
    for name in ["location", "content-location"] {
      // 9111 4.4: never another origin.
      guard let value = response.fields.single(name)?.trimmingFieldSpace(), !value.isEmpty,
        let url = URL(string: value, relativeTo: request.url)?.absoluteURL, !origin.isEmpty,
        Self.origin(of: url) == origin, !urls.contains(url)
      else { continue }
      urls.append(url)
    }
    return Invalidation(urls: urls, groups: CacheGroups.invalidated(by: response.fields), origin: origin)
  }

  /// `scheme://host:port` in lower case with the default port filled in; `nil` without host or for other schemes than
  /// http and https.
  public static func origin(of url: URL) -> String? {
    guard let scheme = url.scheme?.asciiLowercased(), scheme == "http" || scheme == "https",
      let host = url.host()?.asciiLowercased(), !host.isEmpty
    else { return nil }
    return "\(scheme)://\(host):\(url.port ?? (scheme == "https" ? 443 : 80))"
  }

  /// The methods that RFC 9110, 9.2.1 calls safe.
  static func isSafe(_ method: String) -> Bool {
    method == "GET" || method == "HEAD" || method == "OPTIONS" || method == "TRACE"
  }
}
