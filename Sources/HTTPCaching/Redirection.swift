#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// The request to which a redirect leads (RFC 9110, section 15.4).
///
/// The status 303 makes each method except HEAD a GET, and 301 and 302 make POST a GET, without content and the fields
/// that describe it. Other methods, such as QUERY (RFC 10008, section 2.5), and all after 307 and 308, are kept.
/// Another origin does not get credentials or the field `Host`; `http` and `https` are different origins. If the target
/// has no fragment, it has that of the redirected request (section 10.2.2).
@usableFromInline
package struct Redirection: Sendable, Hashable {
  /// The request to send.
  package let head: RequestHead
  /// Whether the request has the content of the redirected one.
  package let keepsContent: Bool

  /// Creates the request to which a response leads.
  ///
  /// `nil` if the response cannot be followed: its status is not that of a redirect, or it has no `Location` with the
  /// scheme http or https.
  ///
  /// - Parameter location: Returns the value of `Location`. Called only for the status of a redirect.
  package init?(of request: RequestHead, status: Int, location: () -> String?) {
    guard Self.isRedirect(status), let location = location(),
      let target = URL(string: FieldText.displayed(location), relativeTo: request.url)?.absoluteURL,
      let scheme = target.scheme?.asciiLowercased(), scheme == "http" || scheme == "https"
    else { return nil }
    var head = request
    head.url = Self.inheritingFragment(of: request.url, target)
    let becomesGet =
      status == 303 && request.method != "HEAD" || (status == 301 || status == 302) && request.method == "POST"
    keepsContent = !becomesGet
    if becomesGet {
      head.method = "GET"
      for name in Self.contentFields { head.fields.remove(name) }
    }
    if Self.leavesOrigin(of: request.url, to: head.url) {
      for name in Self.fieldsForOneOrigin { head.fields.remove(name) }
    }
    self.head = head
  }

  /// Whether a status is that of a redirect to `Location`.
  @inlinable
  package static func isRedirect(_ status: Int) -> Bool {
    switch status {
    case 301, 302, 303, 307, 308: true
    default: false
    }
  }

  /// The fields that describe content or announce it: those of RFC 9110, section 15.4, and digests (RFC 9530).
  private static let contentFields = [
    "Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Location", "Content-Digest",
    "Repr-Digest", "Digest", "Last-Modified", "Transfer-Encoding", "Trailer", "Expect",
  ]

  /// The fields that must not be sent to another origin: credentials, and the name of the host.
  private static let fieldsForOneOrigin = UnsharedFields.ofUser + ["host"]

  /// Whether a field must not be sent to another origin.
  package static func isForOneOrigin(_ name: String) -> Bool {
    fieldsForOneOrigin.contains { $0.equalsIgnoringCase(name) }
  }

  /// Whether two URLs have different origins.
  package static func leavesOrigin(of url: URL, to target: URL) -> Bool {
    Invalidation.origin(of: url) != Invalidation.origin(of: target)
  }

  private static func inheritingFragment(of url: URL, _ target: URL) -> URL {
    guard let fragment = url.fragment, target.fragment == nil else { return target }
    return URL(string: target.absoluteString + "#" + fragment) ?? target
  }
}
