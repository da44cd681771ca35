/// How a request wants stored responses used: the six of `URLRequest.CachePolicy`, with the raw values of
/// Apple's systems; Foundation's on Linux are others, so convert by name.
public enum RequestPolicy: UInt, Sendable, Hashable, CaseIterable {
  /// HTTP's rules. The default.
  case useProtocolCachePolicy = 0
  /// The origin's answer only; what is stored is not used. The answer may be stored.
  case reloadIgnoringLocalCacheData = 1
  /// Any stored answer, whatever its age; else the origin's.
  case returnCacheDataElseLoad = 2
  /// Any stored answer, whatever its age; else none: the network is not asked.
  case returnCacheDataDontLoad = 3
  /// As `reloadIgnoringLocalCacheData`, and caches on the way are told so too (`Cache-Control: no-cache`).
  case reloadIgnoringLocalAndRemoteCacheData = 4
  /// A stored answer only after the origin confirmed it.
  case reloadRevalidatingCacheData = 5
}
