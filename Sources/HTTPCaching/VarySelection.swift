/// The part of a request that selected a response: the fields its `Vary` names, and always its credentials: `Authorization`,
/// or the user of the URL. RFC 9111, 4.1.
public struct VarySelection: Sendable, Hashable {
  /// One selecting field.
  public struct Field: Sendable, Hashable {
    /// The name in lower case; `*` for a response that matches no request.
    public let name: String
    /// The normalised value, or for `authorization` the digest of the credentials; `nil`: the request had none.
    public let value: String?

    /// A selecting field as stored.
    public init(name: String, value: String?) {
      self.name = name
      self.value = value
    }
  }

  /// The selecting fields, ordered by name. Empty: the response suits every request without credentials.
  public let selectors: [Field]

  /// A selection read back from storage.
  public init(selectors: [Field]) {
    self.selectors = selectors
  }

  /// The selection of a response: what `request` holds for the names in the `Vary` of `response`, and its credentials,
  /// whatever `Vary` says.
  /// - Parameter credentialDigest: a keyed digest, so that no credential is stored.
  public init(request: RequestHead, response: HTTPFields, credentialDigest: (String) -> String) {
    guard var names = Self.names(in: response) else {
      selectors = [Field(name: "*", value: nil)]
      return
    }
    if request.hasCredentials { names.insert(Self.authorization) }
    selectors = names.sorted().map {
      Field(name: $0, value: Self.value(of: $0, in: request, credentialDigest: credentialDigest))
    }
  }

  /// Whether the response may be selected for `request`. Without selectors it costs one look for credentials.
  /// - Parameter credentialDigest: the same function as when it was stored; called only if needed.
  public func matches(_ request: RequestHead, credentialDigest: (String) -> String) -> Bool {
    var sawAuthorization = false
    for field in selectors {
      if field.name == "*" { return false }
      if field.name == Self.authorization { sawAuthorization = true }
      guard Self.isEqual(request, to: field, credentialDigest: credentialDigest) else { return false }
    }
    return sawAuthorization || !request.hasCredentials
  }

  /// Whether the response had a `Vary` field with names. Where several stored responses match, one that varies is to be
  /// preferred to a newer one that does not (RFC 9111, 4.1).
  public var isVarying: Bool { selectors.contains { $0.name != Self.authorization } }

  private static let authorization = "authorization"

  /// The names in `Vary`, in lower case; `nil` if nothing can match: it holds `*` or what is no name.
  static func names(in response: HTTPFields) -> Set<String>? {
    var names: Set<String> = []
    for line in response.values(of: "vary") {
      for element in line.utf8.split(separator: UInt8(ascii: ",")) {
        let name = String(decoding: element, as: UTF8.self).trimmingFieldSpace().asciiLowercased()
        if name.isEmpty { continue }
        guard name != "*", name.utf8.allSatisfy(\.isTokenByte) else { return nil }
        names.insert(name)
      }
    }
    return names
  }

  /// Absent matches only absent.
  private static func isEqual(
    _ request: RequestHead, to field: Field, credentialDigest: (String) -> String
  ) -> Bool {
    let value = selectingValue(of: field.name, in: request)
    guard let value, let stored = field.value else { return value == nil && field.value == nil }
    return field.name == authorization
      ? credentialDigest(value) == stored : SelectionNormalizer.isEqual(value, to: stored, of: field.name)
  }

  private static func value(
    of name: String, in request: RequestHead, credentialDigest: (String) -> String
  ) -> String? {
    guard let value = selectingValue(of: name, in: request) else { return nil }
    return name == authorization ? credentialDigest(value) : SelectionNormalizer.normalize(value, of: name)
  }

  /// What the origin sees of a request under this name.
  private static func selectingValue(of name: String, in request: RequestHead) -> String? {
    if name == authorization { return request.credentials }
    if let value = request.fields[name] { return value }
    return name == "user-agent" ? request.defaultUserAgent : nil
  }
}
