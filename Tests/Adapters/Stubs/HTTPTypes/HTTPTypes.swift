// The declarations of swift-http-types 1.6.0 that the adapters use.

/// A header field.
public struct HTTPField: Sendable, Hashable {
  /// The name of a field; names are equal without regard to case.
  public struct Name: Sendable, Hashable {
    /// The name as it was written.
    public let rawName: String
    /// The name in lower case.
    public let canonicalName: String

    /// A name; nil if it is empty or has a character that no token has.
    public init?(_ name: String) {
      guard !name.isEmpty, name.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F && $0 != UInt8(ascii: ":") }) else {
        return nil
      }
      rawName = name
      canonicalName = name.lowercased()
    }

    /// Whether two names are the same without regard to case.
    public static func == (left: Name, right: Name) -> Bool { left.canonicalName == right.canonicalName }

    /// Hashes the name without regard to case.
    public func hash(into hasher: inout Hasher) { hasher.combine(canonicalName) }
  }

  /// The name.
  public var name: Name
  /// The value.
  public var value: String

  /// A field.
  public init(name: Name, value: String) {
    self.name = name
    self.value = value
  }
}

/// The header fields of a message, in their order.
public struct HTTPFields: Sendable, Hashable {
  private var fields: [HTTPField] = []

  /// No fields.
  public init() {}

  /// The value of a field, its lines joined; nil without any line.
  public subscript(name: HTTPField.Name) -> String? {
    get {
      let values = fields.filter { $0.name == name }.map(\.value)
      return values.isEmpty ? nil : values.joined(separator: ", ")
    }
    set {
      fields.removeAll { $0.name == name }
      if let newValue { fields.append(HTTPField(name: name, value: newValue)) }
    }
  }
}

extension HTTPFields: ExpressibleByDictionaryLiteral {
  /// The given fields in their order.
  public init(dictionaryLiteral elements: (HTTPField.Name, String)...) {
    fields = elements.map { HTTPField(name: $0.0, value: $0.1) }
  }
}

extension HTTPFields: RangeReplaceableCollection, RandomAccessCollection, MutableCollection {
  /// The position of the first field.
  public var startIndex: Int { fields.startIndex }
  /// The position after the last field.
  public var endIndex: Int { fields.endIndex }

  /// The field at a position.
  public subscript(position: Int) -> HTTPField {
    get { fields[position] }
    set { fields[position] = newValue }
  }

  /// Replaces the fields in a range.
  public mutating func replaceSubrange<C>(_ subrange: Range<Int>, with newElements: C)
  where C: Collection, C.Element == HTTPField {
    fields.replaceSubrange(subrange, with: newElements)
  }
}

/// The head of a request.
public struct HTTPRequest: Sendable, Hashable {
  /// The method of a request.
  public struct Method: Sendable, Hashable, RawRepresentable {
    /// The method as it is sent.
    public let rawValue: String

    /// A method; nil for an empty text.
    public init?(_ method: String) {
      guard !method.isEmpty else { return nil }
      rawValue = method
    }

    /// A method; nil for an empty text.
    public init?(rawValue: String) { self.init(rawValue) }

    /// GET.
    public static var get: Method { Method("GET")! }
    /// HEAD.
    public static var head: Method { Method("HEAD")! }
    /// POST.
    public static var post: Method { Method("POST")! }
  }

  /// The method.
  public var method: Method
  /// The scheme of the target.
  public var scheme: String?
  /// The host and port of the target.
  public var authority: String?
  /// The path and query of the target.
  public var path: String?
  /// The header fields.
  public var headerFields: HTTPFields

  /// A head.
  public init(method: Method, scheme: String?, authority: String?, path: String?, headerFields: HTTPFields = [:]) {
    self.method = method
    self.scheme = scheme
    self.authority = authority
    self.path = path
    self.headerFields = headerFields
  }
}

/// The head of a response.
public struct HTTPResponse: Sendable, Hashable {
  /// The status of a response.
  public struct Status: Sendable, Hashable {
    /// The status code.
    public let code: Int
    /// The text that HTTP/1.1 sends with the code.
    public let reasonPhrase: String

    /// A status.
    public init(code: Int, reasonPhrase: String = "") {
      self.code = code
      self.reasonPhrase = reasonPhrase
    }
  }

  /// The status.
  public var status: Status
  /// The header fields.
  public var headerFields: HTTPFields

  /// A head.
  public init(status: Status, headerFields: HTTPFields = [:]) {
    self.status = status
    self.headerFields = headerFields
  }
}
