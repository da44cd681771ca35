/// Groups of stored responses of one origin. RFC 9875.
public enum CacheGroups {
  /// The groups in the `Cache-Groups` of a response, each once; empty if it has none or it is malformed.
  public static func groups(of response: HTTPFields) -> [String] { strings("cache-groups", in: response) }

  /// The groups in the `Cache-Group-Invalidation` of a response, each once; empty if it has none or it is malformed.
  public static func invalidated(by response: HTTPFields) -> [String] {
    strings("cache-group-invalidation", in: response)
  }

  /// RFC 9875, 2 and 3: a list of strings; parameters are ignored, a member of another type makes the field invalid.
  private static func strings(_ name: String, in fields: HTTPFields) -> [String] {
    let lines = fields.values(of: name)
    guard !lines.isEmpty, let members = StructuredFields.list(lines) else { return [] }
    var groups: [String] = []
    var seen: Set<String> = []
    for member in members {
      guard case .item(.string(let group)) = member else { return [] }
      if seen.insert(group).inserted { groups.append(group) }
    }
    return groups
  }
}
