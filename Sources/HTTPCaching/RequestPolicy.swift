/// The use of stored responses by a request: the six values of `URLRequest.CachePolicy`.
///
/// The raw values are those of Apple's systems. Foundation on Linux has others, so convert by name.
public enum RequestPolicy: UInt, Sendable, Hashable, CaseIterable {
  /// Follows the rules of HTTP. The default.
  case useProtocolCachePolicy = 0
  /// Loads from the origin without using stored responses. The response may be stored.
  case reloadIgnoringLocalCacheData = 1
  /// Uses a stored response of any age; without one, loads from the origin.
  case returnCacheDataElseLoad = 2
  /// Uses a stored response of any age, and never the network.
  case returnCacheDataDontLoad = 3
  /// Like `reloadIgnoringLocalCacheData`; also tells other caches (`Cache-Control: no-cache`).
  case reloadIgnoringLocalAndRemoteCacheData = 4
  /// Uses a stored response only after successful validation.
  case reloadRevalidatingCacheData = 5
}
