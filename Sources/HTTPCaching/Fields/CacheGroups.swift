/// Cache groups: groups of stored responses of one origin (RFC 9875).
public enum CacheGroups {
  /// Returns the groups in `Cache-Groups` of a response without duplicates; empty if there is none or it is malformed.
  public static func groups(of response: HeaderFields) -> [String] { strings("cache-groups", in: response) }

  /// Returns the groups in `Cache-Group-Invalidation` of a response, like ``groups(of:)``.
  public static func invalidated(by response: HeaderFields) -> [String] {
    strings("cache-group-invalidation", in: response)
  }

  /// Parses a list of strings.
  ///
  /// Parameters are ignored; a member of another type invalidates the field (RFC 9875, 2 and 3).
  private static func strings(_ name: String, in fields: HeaderFields) -> [String] {
    let lines = fields.values(of: name)
    guard !lines.isEmpty, let members = StructuredFields.list(lines) else { return [] }
    var groups: [String] = []
    var seen: Set<String> = []
    for member in members {
      guard case .string(let group) = member else { return [] }
      if seen.insert(group).inserted { groups.append(group) }
    }
    return groups
  }
}
