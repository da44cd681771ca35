/// A named rule of an operator: overrides of HTTP's caching rules for hosts, paths and media types.
///
/// A rule applies if one of its patterns of each kind matches; a kind without patterns matches everything. In a pattern
/// a `*` matches any characters, also none. Properties that are `nil` leave the decision to earlier rules and to HTTP.
///
///     CachingRule(name: "API", hosts: ["*.example.com"], paths: ["/v1/*"], lifetime: 600)
///
/// ``CachingRules`` describes how several rules combine, and their form in JSON.
public struct CachingRule: Sendable, Hashable {
  /// The name, by which `urlcache explain` and errors refer to the rule. Each rule of a list has another one.
  public var name: String

  /// Patterns for the host, such as `api.example.com` or `*.example.com`, which does not match `example.com`.
  ///
  /// A pattern has no port and matches every port. The case does not matter, a name in another script equals its ASCII
  /// form, and a dot at the end does not count.
  public var hosts: [String]

  /// Patterns for the path, such as `/img/*`. A pattern with a `?` is compared with the query as well.
  ///
  /// The case matters. A path matches in all its spellings: with a letter or its percent-encoding, and with dot
  /// segments or without.
  public var paths: [String]

  /// Patterns for the media type of the response, such as `image/*`, without parameters.
  ///
  /// A media type is known only when a response arrives. Such a rule can set ``lifetime``, ``ignoredResponseFields``
  /// and ``allowsStoring``. A response without a `Content-Type` matches no pattern.
  public var mediaTypes: [String]

  /// The freshness lifetime in seconds; see ``RequestOverrides/lifetime``. 0 makes responses stale at once.
  public var lifetime: Double?

  /// The names of response fields to ignore; see ``RequestOverrides/ignoredResponseFields``.
  public var ignoredResponseFields: [String]?

  /// The names of query parameters to leave out of the cache key; see ``RequestOverrides/ignoredQueryParameters``.
  public var ignoredQueryParameters: Set<String>?

  /// Whether responses can be stored; see ``RequestOverrides/allowsStoring``.
  public var allowsStoring: Bool?

  /// Whether requests may share a fetch; see ``RequestOverrides/allowsCoalescing``.
  public var allowsCoalescing: Bool?

  /// Whether a POST is a query, whose content is a part of the cache key; see ``RequestOverrides/treatsAsQuery``.
  public var treatsAsQuery: Bool?

  /// The name of the form in which the content of queries is compared: `json` for ``QueryNormalForm/json``, or `none`;
  /// see ``RequestOverrides/queryNormalForm``.
  public var queryNormalForm: String?

  /// The seconds after which a stale response is served while the origin does not respond; infinity for never. In JSON
  /// `"never"`. See ``RequestOverrides/staleAfter``.
  public var staleAfter: Double?

  /// The name of a request field whose value becomes a part of the partition, for example `X-Tenant`.
  ///
  /// Responses are never served across partitions. Requests with different values have different partitions, and those
  /// without the field have one of their own. Several lines of the field are another partition than one line. If
  /// several rules with a field apply, all their fields count.
  ///
  /// The value is in the cache key, and therefore on disk and in the output of `urlcache`. So the field cannot be one
  /// with credentials. For these use `Options.partition` with a digest.
  public var partitionField: String?

  /// Creates a rule.
  public init(
    name: String, hosts: [String] = [], paths: [String] = [], mediaTypes: [String] = [], lifetime: Double? = nil,
    ignoredResponseFields: [String]? = nil, ignoredQueryParameters: Set<String>? = nil, allowsStoring: Bool? = nil,
    allowsCoalescing: Bool? = nil, treatsAsQuery: Bool? = nil, queryNormalForm: String? = nil,
    staleAfter: Double? = nil, partitionField: String? = nil
  ) {
    self.name = name
    self.hosts = hosts
    self.paths = paths
    self.mediaTypes = mediaTypes
    self.lifetime = lifetime
    self.ignoredResponseFields = ignoredResponseFields
    self.ignoredQueryParameters = ignoredQueryParameters
    self.allowsStoring = allowsStoring
    self.allowsCoalescing = allowsCoalescing
    self.treatsAsQuery = treatsAsQuery
    self.queryNormalForm = queryNormalForm
    self.staleAfter = staleAfter
    self.partitionField = partitionField
  }

  /// The properties that the rule sets, with their values as text, in the order of their declaration.
  package var effects: [(key: String, value: String)] {
    var effects: [(key: String, value: String)] = []
    if let lifetime { effects.append(("lifetime", DurationText.text(lifetime))) }
    if let ignoredResponseFields {
      effects.append(("ignoredResponseFields", ignoredResponseFields.joined(separator: ", ")))
    }
    if let ignoredQueryParameters {
      effects.append(("ignoredQueryParameters", ignoredQueryParameters.sorted().joined(separator: ", ")))
    }
    if let allowsStoring { effects.append(("allowsStoring", "\(allowsStoring)")) }
    if let allowsCoalescing { effects.append(("allowsCoalescing", "\(allowsCoalescing)")) }
    if let treatsAsQuery { effects.append(("treatsAsQuery", "\(treatsAsQuery)")) }
    if let queryNormalForm { effects.append(("queryNormalForm", queryNormalForm)) }
    if let staleAfter { effects.append(("staleAfter", staleAfter.isFinite ? DurationText.text(staleAfter) : "never")) }
    if let partitionField { effects.append(("partitionField", partitionField)) }
    return effects
  }
}

extension CachingRule: Codable {
  enum CodingKeys: String, CodingKey, CaseIterable {
    case name, hosts, paths, mediaTypes, lifetime, ignoredResponseFields, ignoredQueryParameters, allowsStoring
    case allowsCoalescing, treatsAsQuery, queryNormalForm, staleAfter, partitionField

    /// The description of a valid value.
    var form: String {
      switch self {
      case .name: "a text"
      case .hosts: "a list with " + HostPattern.form
      case .paths: "a list with " + PathPattern.form
      case .mediaTypes: "a list with " + MediaType.form
      case .lifetime: "seconds or " + DurationText.form
      case .ignoredResponseFields: "a list of field names, such as 'Set-Cookie'"
      case .ignoredQueryParameters: "a list of names of query parameters, such as 'token'"
      case .allowsStoring, .allowsCoalescing, .treatsAsQuery: "true or false"
      case .queryNormalForm: "'json' or 'none'"
      case .staleAfter: "seconds, " + DurationText.form + ", or 'never'"
      case .partitionField: "the name of one request field, such as 'X-Tenant'"
      }
    }
  }

  /// Any key of an object, to find those that no property has.
  private struct AnyKey: CodingKey {
    let stringValue: String
    var intValue: Int? { nil }
    init(stringValue: String) { self.stringValue = stringValue }
    init?(intValue: Int) { nil }
  }

  /// Decodes a rule from an object whose keys are the names of the properties.
  ///
  /// - Throws: `DecodingError.dataCorrupted` that names the rule, the key and a valid value, for an unknown key too.
  public init(from decoder: any Decoder) throws {
    let container = try decoder.container(keyedBy: CodingKeys.self)
    name = ""
    (hosts, paths, mediaTypes) = ([], [], [])
    name = try Self.decode(.name, "", container) ?? ""
    let known = CodingKeys.allCases.map(\.rawValue)
    for key in try decoder.container(keyedBy: AnyKey.self).allKeys where !known.contains(key.stringValue) {
      throw CachingRulesError(
        rule: name, key: key.stringValue, "there is no such key", "The keys are " + known.joined(separator: ", ")
      ).decodingError(at: decoder.codingPath + [key])
    }
    hosts = try Self.patterns(.hosts, name, container)
    paths = try Self.patterns(.paths, name, container)
    mediaTypes = try Self.patterns(.mediaTypes, name, container)
    lifetime = try Self.seconds(.lifetime, name, container)
    ignoredResponseFields = try Self.decode(.ignoredResponseFields, name, container)
    ignoredQueryParameters = try Self.decode(.ignoredQueryParameters, name, container)
    allowsStoring = try Self.decode(.allowsStoring, name, container)
    allowsCoalescing = try Self.decode(.allowsCoalescing, name, container)
    treatsAsQuery = try Self.decode(.treatsAsQuery, name, container)
    queryNormalForm = try Self.decode(.queryNormalForm, name, container)
    staleAfter = try Self.seconds(.staleAfter, name, container, orNever: true)
    partitionField = try Self.decode(.partitionField, name, container)
  }

  /// Encodes the properties that are set; the lifetime as a number of seconds.
  public func encode(to encoder: any Encoder) throws {
    var container = encoder.container(keyedBy: CodingKeys.self)
    try container.encode(name, forKey: .name)
    if !hosts.isEmpty { try container.encode(hosts, forKey: .hosts) }
    if !paths.isEmpty { try container.encode(paths, forKey: .paths) }
    if !mediaTypes.isEmpty { try container.encode(mediaTypes, forKey: .mediaTypes) }
    try container.encodeIfPresent(lifetime, forKey: .lifetime)
    try container.encodeIfPresent(ignoredResponseFields, forKey: .ignoredResponseFields)
    try container.encodeIfPresent(ignoredQueryParameters?.sorted(), forKey: .ignoredQueryParameters)
    try container.encodeIfPresent(allowsStoring, forKey: .allowsStoring)
    try container.encodeIfPresent(allowsCoalescing, forKey: .allowsCoalescing)
    try container.encodeIfPresent(treatsAsQuery, forKey: .treatsAsQuery)
    try container.encodeIfPresent(queryNormalForm, forKey: .queryNormalForm)
    // JSON has no infinity.
    if let staleAfter, staleAfter.isFinite {
      try container.encode(staleAfter, forKey: .staleAfter)
    } else if staleAfter != nil {
      try container.encode("never", forKey: .staleAfter)
    }
    try container.encodeIfPresent(partitionField, forKey: .partitionField)
  }

  /// Whether the key is there.
  ///
  /// - Throws: For null, which a program may write for a value that it does not know. Read as a missing key, it would
  ///   make a rule of one host a rule of all hosts, or leave out what the rule is for.
  private static func hasValue(
    _ key: CodingKeys, _ name: String, _ container: KeyedDecodingContainer<CodingKeys>
  ) throws -> Bool {
    guard container.contains(key) else { return false }
    guard try !container.decodeNil(forKey: key) else {
      throw CachingRulesError(
        rule: name, key: key.rawValue, "the value is null",
        key == .name ? "Write \(key.form)" : "Leave the key out, or write \(key.form)"
      ).decodingError(at: container.codingPath + [key])
    }
    return true
  }

  private static func decode<Value: Decodable>(
    _ key: CodingKeys, _ name: String, _ container: KeyedDecodingContainer<CodingKeys>
  ) throws -> Value? {
    guard try hasValue(key, name, container) else { return nil }
    do { return try container.decode(Value.self, forKey: key) } catch {
      throw CachingRulesError(rule: name, key: key.rawValue, "the value has another type", "Write \(key.form)")
        .decodingError(at: container.codingPath + [key])
    }
  }

  private static func patterns(
    _ key: CodingKeys, _ name: String, _ container: KeyedDecodingContainer<CodingKeys>
  ) throws -> [String] {
    guard let patterns: [String] = try decode(key, name, container) else { return [] }
    guard !patterns.isEmpty else {
      throw CachingRulesError(rule: name, key: key.rawValue, "the list is empty", "Leave the key out to match all")
        .decodingError(at: container.codingPath + [key])
    }
    return patterns
  }

  private static func seconds(
    _ key: CodingKeys, _ name: String, _ container: KeyedDecodingContainer<CodingKeys>, orNever: Bool = false
  ) throws -> Double? {
    guard try hasValue(key, name, container) else { return nil }
    // A value that is no number is read as a text with a unit below. If it is no text either, that line throws.
    if let number = try? container.decode(Double.self, forKey: key) { return number }
    guard let text: String = try decode(key, name, container) else { return nil }
    if orNever, text == "never" { return .infinity }
    guard let seconds = DurationText.seconds(text) else {
      throw CachingRulesError(
        rule: name, key: key.rawValue, "'\(text)' is not a duration", "Write \(key.form)"
      ).decodingError(at: container.codingPath + [key])
    }
    return seconds
  }
}
