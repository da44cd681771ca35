import Foundation
import HTTPCaching

/// The arguments of the proxy.
struct Arguments {
  /// A way to load through the cache.
  enum Way: String, CaseIterable {
    /// `CachingClient` over libcurl: every field line as sent.
    case curl
    /// `CachingClient` over `URLSession`.
    case urlsession
    /// `LMDBURLCache.data(for:)` over libcurl, with Foundation's requests and responses.
    case data
  }

  var mode = CachingOptions.Mode.private
  var way = Way.curl
  var origin: URL
  var directory: String

  /// Parses `MODE WAY ORIGIN DIRECTORY`, or returns nil.
  init?(_ arguments: [String]) {
    guard arguments.count == 4, let way = Way(rawValue: arguments[1]), let origin = URL(string: arguments[2]) else {
      return nil
    }
    switch arguments[0] {
    case "private": mode = .private
    case "shared": mode = .shared
    default: return nil
    }
    self.way = way
    self.origin = origin
    directory = arguments[3]
  }

  /// The choices of the cache: the defaults of its mode, and in shared mode the targeted field of CDNs.
  var caching: CachingOptions {
    var options = CachingOptions()
    options.mode = mode
    if mode == .shared { options.targetedFieldNames = ["CDN-Cache-Control"] }
    return options
  }
}
