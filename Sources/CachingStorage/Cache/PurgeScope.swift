import CacheModel
public import FoundationEssentials
import HTTPCaching

/// The responses that a purge covers.
public enum PurgeScope: Sendable, Hashable {
  /// Everything.
  case all
  /// Responses stored, or updated by a validation, after the date.
  case since(Date)
  /// Responses for a host with any scheme and port, but not for its subdomains.
  ///
  /// The host can have any spelling: the case does not matter, and a name in another script or with percent-encoding is
  /// the host that it reaches. It has no port. An IPv6 address can have brackets.
  case host(String)
  /// Responses whose URL starts with this one: same scheme, host and port, and a path and query with this prefix.
  ///
  /// For this case and `url`, query parameters that the overrides of an `LMDBURLCache` ignore do not count.
  case prefix(URL)
  /// Members of a cache group (RFC 9875) of the URL's origin.
  case group(String, origin: URL)
  /// All variants of a URL, for all methods and in all partitions.
  case url(URL)
  /// Responses with a tag: `purge(.tag("product-42"))`.
  ///
  /// A tag that is not UTF-8 has the form of ``/HTTPCaching/FieldText``. The origin is that of the URL; nil for all.
  /// The fields are those that have tags (``/HTTPCaching/ResponseTags``). Nil are those of the cache's options
  /// (``/HTTPCaching/CachingOptions/tagFieldNames``), or, without a cache, all fields whose syntax is known.
  case tag(String, origin: URL? = nil, fieldNames: [String]? = nil)
}

/// The effect of a purge on the responses that it covers.
public enum PurgeMode: Sendable, Hashable {
  /// When the purge returns, no thread or process can read them, even after a crash.
  case hard
  /// When the purge returns, they are stale in every thread and process, even after a crash.
  ///
  /// A stale response is validated before it is served, with one conditional request. `stale-while-revalidate` and
  /// `stale-if-error`, which then count from the purge, and requests that accept stale responses still permit serving
  /// it. After a successful validation it is fresh again.
  case soft
}

extension PurgeMode {
  /// The effect of a purge at a time.
  package func effect(at time: Date) -> RemovalEffect {
    switch self {
    case .hard: .removed
    case .soft: .stale(since: time)
    }
  }
}

/// A purge scope that no stored response can have, so that nothing was purged.
public struct PurgeScopeError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The mistake and what to write instead. Contains at most a host of the scope.
  public let description: String
}

extension PurgeScope {
  /// Why no removal can be made of this scope, and what to write instead. Contains at most a host of the scope.
  package var mistake: String {
    if case .tag("", _, _) = self { return "the tag is empty." }
    if case .tag(_, let origin, _) = self, origin.map({ RemovalScope.target(of: $0) != nil }) ?? true {
      return "no field has tags. Set the option tagFieldNames."
    }
    guard case .host(let text) = self else {
      return "no response can be stored for the URL. Use an absolute http or https URL, such as https://example.com/."
    }
    // A host with a port is the beginning of a URL.
    let meant = (URL(string: text)?.host ?? URL(string: "//" + text)?.host).flatMap { HostName.canonical($0) }
    return "the text is not one host alone. Write \"\(meant ?? "example.com")\", without a scheme, a port or a path."
  }

  /// Returns the store's scope for this purge; nil for a URL that cannot be cached, a host that is none, an empty tag,
  /// or without fields for a tag.
  ///
  /// - Parameter tagFieldNames: The fields that have tags, for a scope that names none.
  package func removalScope(tagFieldNames: [String] = ResponseTags.knownFieldNames) -> RemovalScope? {
    switch self {
    case .all: .everything
    case .since(let date): .since(date)
    case .host(let host): .host(validating: host)
    case .prefix(let url): .urlPrefix(url)
    case .group(let name, let origin): .group(name, ofOrigin: origin)
    case .url(let url): .target(of: url)
    case .tag(let name, let origin, let fieldNames): .tag(name, in: fieldNames ?? tagFieldNames, ofOrigin: origin)
    }
  }
}
