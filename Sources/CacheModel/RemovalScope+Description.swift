import FoundationEssentials

extension RemovalScope: CustomStringConvertible {
  /// The scope as in the options of `urlcache purge`, such as `host api.example.com`. It contains the query of a URL.
  public var description: String { summary.value.isEmpty ? summary.kind : "\(summary.kind) \(summary.value)" }

  /// The scope in words and URLs, as in the options of `urlcache purge`.
  ///
  /// It contains the query, so do not write it to default logs.
  package var summary: (kind: String, value: String) {
    func url(_ bytes: [UInt8]) -> String { RequestKey(storedBytes: bytes + [0, 0, 0]).urlString }
    switch self {
    case .everything: return ("all", "")
    case .since(let date): return ("since", date.formatted(.iso8601))
    case .prefix(let bytes):
      guard bytes.last == 0, bytes.dropLast().contains(0) == false else { return ("prefix", url(bytes)) }
      return ("host", String(decoding: bytes.dropLast(), as: UTF8.self))
    case .group(let origin, let name): return ("group", "\(name) of \(url(origin))")
    case .target(let bytes): return ("url", url(bytes))
    case .key(let bytes), .resource(let bytes): return ("request", RequestKey(storedBytes: bytes).description)
    case .digested(let beginning, let byteCount, _, _, _):
      return ("prefix", "\(url(beginning))… (\(byteCount) bytes)")
    case .digestedGroup(let origin, let byteCount, _, _):
      return ("group", "a name of \(byteCount) bytes, of \(url(origin))")
    }
  }
}
