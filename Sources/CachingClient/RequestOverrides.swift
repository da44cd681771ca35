import FoundationEssentials
import HTTPCaching

/// Where the caller knows better than the server, for one request. Everything here is applied before any decision is made.
public struct RequestOverrides: Sendable, Hashable {
  /// For how many seconds a response is fresh, whatever its own fields say. The default, `nil`, leaves it to them, as does a
  /// negative number.
  ///
  /// The stored response then carries `Cache-Control: max-age` of this many seconds in place of its own Cache-Control, Expires,
  /// Pragma and Age. It makes successful answers, redirects, 404 and 410 storable; other errors keep their own rules, and so
  /// does a request with `no-store`.
  public var lifetime: Double?

  /// Names of response fields that are taken as not sent, for example `Vary` or `Set-Cookie`. Case does not matter.
  ///
  /// The answer from the network shows them all the same; the stored response does not have them.
  public var ignoredResponseFields: [String]

  /// Names of query parameters that do not tell responses apart, for example a token or a tracking id. They are sent, but left
  /// out of the key. A name is compared as it stands in the URL, percent-encoding included.
  public var ignoredQueryParameters: Set<String>

  /// Whether the request may wait for an identical one that is under way and share its response, and the other way round.
  /// The default is yes.
  ///
  /// Without it the request asks the origin itself when nothing usable is stored, as it would without a cache. For a resource
  /// whose origin answers late on purpose, such as long polling.
  public var allowsCoalescing: Bool

  /// Overrides; with no argument, none.
  public init(
    lifetime: Double? = nil, ignoredResponseFields: [String] = [], ignoredQueryParameters: Set<String> = [],
    allowsCoalescing: Bool = true
  ) {
    self.lifetime = lifetime
    self.ignoredResponseFields = ignoredResponseFields
    self.ignoredQueryParameters = ignoredQueryParameters
    self.allowsCoalescing = allowsCoalescing
  }

  /// The URL without the ignored query parameters; without a query if none is left. What the storage keys by.
  public func keyURL(for url: URL) -> URL {
    guard !ignoredQueryParameters.isEmpty else { return url }
    let text = url.absoluteString
    let beforeFragment = text[..<(text.firstIndex(of: "#") ?? text.endIndex)]
    guard let mark = beforeFragment.firstIndex(of: "?") else { return url }
    let query = beforeFragment[beforeFragment.index(after: mark)...]
    let kept = query.split(separator: "&", omittingEmptySubsequences: false).filter { parameter in
      !ignoredQueryParameters.contains(String(parameter.prefix { $0 != "=" }))
    }
    let stripped = beforeFragment[..<mark] + (kept.isEmpty ? "" : "?" + kept.joined(separator: "&"))
    // Removing whole parameters of a valid URL leaves a valid URL; should that ever fail, the full one is the safe key.
    return URL(string: String(stripped)) ?? url
  }

  /// The response as decisions are to see it.
  public func judged(_ head: ResponseHead) -> ResponseHead {
    guard lifetime != nil || !ignoredResponseFields.isEmpty else { return head }
    var head = head
    for name in ignoredResponseFields { head.fields.remove(name) }
    if let lifetime = forcedLifetime(for: head.status) {
      for name in ["Expires", "Pragma", "Age"] { head.fields.remove(name) }
      head.fields.set("Cache-Control", "max-age=\(Int(lifetime))")
    }
    return head
  }

  /// The facts as the forced lifetime makes them: it counts from receipt, so a server's wrong clock plays no part.
  public func applied(to facts: FreshnessFacts, status: Int) -> FreshnessFacts {
    guard let lifetime = forcedLifetime(for: status) else { return facts }
    var facts = facts
    facts.initialAge = 0
    facts.lifetime = lifetime
    facts.flags.remove(.stale)
    return facts
  }

  private func forcedLifetime(for status: Int) -> Double? {
    guard let lifetime, lifetime >= 0 else { return nil }
    switch status {
    case 200..<400, 404, 410: return min(lifetime, FreshnessFacts.maximumSeconds)
    default: return nil
    }
  }
}
