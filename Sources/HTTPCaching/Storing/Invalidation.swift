#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The stored responses that a response to an unsafe request invalidates (RFC 9111, section 4.4; RFC 9875, section 3).
public struct Invalidation: Sendable, Hashable {
  /// The target URI, and the same-origin URIs in `Location` and `Content-Location`. All variants are invalidated.
  public let urls: [URL]
  /// The groups of `origin` that `Cache-Group-Invalidation` names.
  public let groups: [String]
  /// The origin `scheme://host:port` of the target URI, with its canonical host and with port; empty without a host.
  public let origin: String

  /// Whether nothing is invalidated.
  public var isEmpty: Bool { urls.isEmpty && groups.isEmpty }

  /// Returns the invalidation by a response; empty for safe methods, and for statuses other than 2xx and 3xx.
  ///
  /// A method that is not known as safe counts as unsafe.
  public static func targets(request: RequestHead, response: ResponseHead) -> Invalidation {
    let origin = origin(of: request.url) ?? ""
    // 9111 4.4: a non-error response to an unsafe method. 9875 3: the field is ignored for safe methods.
    guard !isSafe(request.method), (200..<400).contains(response.status) else {
      return Invalidation(urls: [], groups: [], origin: origin)
    }
    var urls = [request.url]
    for name in ["location", "content-location"] {
      // 9111 4.4: only the same origin.
      guard let value = response.fields.single(name)?.trimmingFieldSpace(), !value.isEmpty,
        let url = URL(string: FieldText.displayed(value), relativeTo: request.url)?.absoluteURL, !origin.isEmpty,
        Self.origin(of: url) == origin, !urls.contains(url)
      else { continue }
      urls.append(url)
    }
    return Invalidation(urls: urls, groups: CacheGroups.invalidated(by: response.fields), origin: origin)
  }

  /// Returns `scheme://host:port` in lowercase, with the default port filled in.
  ///
  /// All spellings of a host that reach the same host have the same origin.
  ///
  /// `nil` without a host, or for schemes other than http and https.
  public static func origin(of url: URL) -> String? {
    guard let scheme = url.scheme?.asciiLowercased(), scheme == "http" || scheme == "https",
      let host = url.host()?.asciiLowercased(), !host.isEmpty
    else { return nil }
    return "\(scheme)://\(url.canonicalHost ?? host):\(url.port ?? (scheme == "https" ? 443 : 80))"
  }

  /// Whether a method is safe (RFC 9110, section 9.2.1; RFC 10008, section 2).
  static func isSafe(_ method: String) -> Bool {
    method == "GET" || method == "HEAD" || method == "OPTIONS" || method == "TRACE" || method == "QUERY"
  }
}

extension URL {
  /// Whether ``Invalidation/origin(of:)`` is not `nil`: the URL has the scheme http or https, and a host.
  ///
  /// - Complexity: Usually one look at the first bytes of the text, without parsing.
  package var isHTTPWithHost: Bool {
    var text = absoluteString
    return text.withUTF8 { Self.startsAsHTTP($0) } || Invalidation.origin(of: self) != nil
  }

  /// Whether a URL starts with the scheme in lowercase, and a host that starts with a letter or a digit.
  private static func startsAsHTTP(_ text: UnsafeBufferPointer<UInt8>) -> Bool {
    let scheme: StaticString = "https://"
    var at = 0
    while at < 4, at < text.count, text[at] == scheme.utf8Start[at] { at += 1 }
    guard at == 4, text.count > 8 else { return false }
    if text[at] == UInt8(ascii: "s") { at += 1 }
    guard text[at] == UInt8(ascii: ":"), text[at + 1] == UInt8(ascii: "/"), text[at + 2] == UInt8(ascii: "/") else {
      return false
    }
    let authority = text[(at + 3)...].prefix { byte in
      byte != UInt8(ascii: "/") && byte != UInt8(ascii: "?") && byte != UInt8(ascii: "#")
    }
    guard let first = authority.first, first.isLetterOrDigit else { return false }
    // What is before an @ is not the host.
    return !authority.contains(UInt8(ascii: "@"))
  }
}

extension UInt8 {
  fileprivate var isLetterOrDigit: Bool { isDigit || (self | 0x20) &- 0x61 < 26 }
}
