/// The Vary key of a response: the request fields that its `Vary` names, and always the credentials (RFC 9111, 4.1).
///
/// Credentials are `Authorization`, or the user of the URL.
public struct VaryKey: Sendable, Hashable {
  /// A field of the Vary key.
  public struct Field: Sendable, Hashable {
    /// The name in lowercase; `*` for a response that matches no request.
    public let name: String
    /// The normalized value, or its digest; `nil` if the request had none.
    ///
    /// Values of `Accept`, `Accept-Charset`, `Accept-Encoding`, `Accept-Language`, `Origin` and `User-Agent` are stored
    /// in clear. Values of all other fields are digests, because they can be secrets. The value of `authorization` is
    /// the digest of the credentials, or `*` if the response matches requests with any credentials or none. For
    /// `:decoded` it is the codings that were removed from the stored content, and for `:encoded` and `:part` those
    /// that the content has.
    public let value: String?

    /// Whether ``value`` is not shown: it is a digest, or an earlier release stored it in clear.
    package var isSecret: Bool {
      guard let value else { return false }
      if name == VaryKey.authorization { return value != VaryKey.anyCredentials }
      return !isForm && !VaryFieldNormalizer.isStoredInClear(name)
    }

    /// Creates a field, as stored.
    public init(name: String, value: String?) {
      self.name = name
      self.value = value
    }
  }

  /// The fields, ordered by name. Empty: the response matches every request without credentials.
  public let fields: [Field]

  /// Creates a Vary key, as stored.
  public init(fields: [Field]) {
    self.fields = fields
  }

  /// Creates the Vary key of a response from the fields of `request` that its `Vary` names.
  ///
  /// The credentials are always included, regardless of `Vary`.
  /// - Parameters:
  ///   - request: The request as it was sent.
  ///   - response: The fields of the response.
  ///   - options: The options of the cache; nil if the response is only for the credentials of the request. A shared
  ///     cache can reuse a response to a request with credentials for others (RFC 9111, section 3.5), unless its `Vary`
  ///     names `Authorization`.
  ///   - isContentDecoded: Whether the transport has removed the codings of the content. Nil, the default, if the
  ///     response is for requests over each transport.
  ///   - credentialDigest: A keyed digest, so that no credential and no other secret is stored.
  public init(
    request: RequestHead, response: HeaderFields, options: CachingOptions? = nil, isContentDecoded: Bool? = nil,
    credentialDigest: (String) -> String
  ) {
    guard var names = Self.names(in: response) else {
      fields = [Field(name: "*", value: nil)]
      return
    }
    // 9111 3.5: a response without the permission is not stored at all.
    let suitsAll = options.map { $0.mode == .shared && $0.reusesAuthorizedResponses } ?? false
    let isForAll = suitsAll && request.hasCredentials && !names.contains(Self.authorization)
    if request.hasCredentials { names.insert(Self.authorization) }
    let form = Self.form(of: response, for: request, isDecoded: isContentDecoded)
    let selecting = names.sorted().map { name in
      isForAll && name == Self.authorization
        ? Field(name: name, value: Self.anyCredentials)
        : Field(name: name, value: Self.value(of: name, in: request, credentialDigest: credentialDigest))
    }
    fields = form.map { [$0] + selecting } ?? selecting
  }

  /// Returns the field for the form of the stored content; nil if the response is for requests over each transport.
  private static func form(of response: HeaderFields, for request: RequestHead, isDecoded: Bool?) -> Field? {
    guard let isDecoded, request.contentDecoding != .unspecified, let codings = response.contentCodings else {
      return nil
    }
    let name = isDecoded ? decoded : response.contains("Content-Range") ? part : encoded
    return Field(name: name, value: codings)
  }

  /// Whether the response matches `request`. Without fields, this only checks for credentials.
  /// - Parameters:
  ///   - request: A later request for the same cache key.
  ///   - credentialDigest: The same function as for storing; called only if needed.
  public func matches(_ request: RequestHead, credentialDigest: (String) -> String) -> Bool {
    var sawAuthorization = false
    for field in fields {
      if field.name == "*" { return false }
      if field.name == Self.authorization { sawAuthorization = true }
      guard Self.isEqual(request, to: field, credentialDigest: credentialDigest) else { return false }
    }
    return sawAuthorization || !request.hasCredentials
  }

  /// Whether a cache with these options may use the response for a request.
  package func matches(
    _ request: RequestHead, options: CachingOptions, credentialDigest: (String) -> String
  ) -> Bool {
    // A shared cache stored this response before the options changed.
    if suitsAllCredentials, options.mode == .private || !options.reusesAuthorizedResponses { return false }
    return matches(request, credentialDigest: credentialDigest)
  }

  /// The Vary key without the form of the stored content.
  package var ofRequest: VaryKey {
    fields.contains(where: \.isForm) ? VaryKey(fields: fields.filter { !$0.isForm }) : self
  }

  /// Whether the `Vary` of the response named fields.
  ///
  /// If several stored responses match, prefer one with such fields to a newer one without (RFC 9111, section 4.1).
  public var hasVaryFields: Bool { fields.contains { $0.name != Self.authorization && !$0.isForm } }

  /// Whether the response to a request with credentials also matches other credentials.
  public var suitsAllCredentials: Bool {
    fields.contains { $0.name == Self.authorization && $0.value == Self.anyCredentials }
  }

  /// The digest of the credentials for which alone the response is; nil for a response for everybody, and for one
  /// without credentials.
  package var userDigest: String? {
    fields.first { $0.name == Self.authorization && $0.value != Self.anyCredentials }?.value
  }

  private static let authorization = "authorization"
  /// The name of the field for content whose codings were removed, or were not. No header field has such a name.
  fileprivate static let decoded = ":decoded"
  fileprivate static let encoded = ":encoded"
  /// The name of the field for a part of encoded content, also after it was combined with other parts.
  fileprivate static let part = ":part"
  /// A value that differs from every digest, because no digest is this short.
  private static let anyCredentials = "*"

  /// Whether a response matches no request, because of `*` or an invalid name in its `Vary`.
  static func matchesNothing(_ response: HeaderFields) -> Bool {
    response.values(of: "vary").contains { line in
      var line = line
      return line.withUTF8 { bytes in
        bytes.split(separator: UInt8(ascii: ",")).contains { element in
          let name = element.trimmingFieldSpace()
          return !name.allSatisfy(\.isTokenByte) || name.count == 1 && name.first == UInt8(ascii: "*")
        }
      }
    }
  }

  /// Returns the names in `Vary`, in lowercase; `nil` if nothing can match, because of `*` or an invalid name.
  static func names(in response: HeaderFields) -> Set<String>? {
    var names: Set<String> = []
    for line in response.values(of: "vary") {
      for name in line.listElements {
        guard name != "*", name.utf8.allSatisfy(\.isTokenByte) else { return nil }
        names.insert(name)
      }
    }
    return names
  }

  /// Whether a request has the stored value of a field. A missing field matches only a missing field.
  private static func isEqual(
    _ request: RequestHead, to field: Field, credentialDigest: (String) -> String
  ) -> Bool {
    if field.isForm { return hasForm(field, for: request) }
    if field.name == authorization, field.value == anyCredentials { return true }
    let value = selectingValue(of: field.name, in: request)
    guard let value, let stored = field.value else { return value == nil && field.value == nil }
    return field.name == authorization
      ? credentialDigest(value) == stored
      : VaryFieldNormalizer.isEqual(value, to: stored, of: field.name, digest: credentialDigest)
  }

  /// Whether a request gets content in a stored form over its transport.
  ///
  /// A part of encoded content is never decoded, so that it is for requests with `Range` over each transport, and only
  /// for these if their transport would decode the whole.
  private static func hasForm(_ field: Field, for request: RequestHead) -> Bool {
    guard request.contentDecoding != .unspecified, let codings = field.value else { return true }
    let decodes = request.contentDecoding.decodes(codings)
    return switch field.name {
    case decoded: decodes
    case part: !decodes || request.fields.contains("range")
    default: !decodes
    }
  }

  private static func value(
    of name: String, in request: RequestHead, credentialDigest: (String) -> String
  ) -> String? {
    guard let value = selectingValue(of: name, in: request) else { return nil }
    return name == authorization
      ? credentialDigest(value)
      : VaryFieldNormalizer.representation(of: value, of: name, digest: credentialDigest)
  }

  /// Returns the value that the origin receives for this name.
  private static func selectingValue(of name: String, in request: RequestHead) -> String? {
    if name == authorization { return request.credentials }
    if let value = request.fields[name] { return value }
    return switch name {
    case "user-agent": request.defaultUserAgent
    case "accept-language": request.defaultLanguage
    case "accept-encoding": request.defaultAcceptEncoding
    default: nil
    }
  }
}

extension VaryKey.Field {
  /// Whether the field is for the form of the stored content and not for a field of the request.
  package var isForm: Bool { name.utf8.first == UInt8(ascii: ":") }
}
