/// The header fields of a message: ordered lines whose names are case-insensitive (RFC 9110, sections 5.1 to 5.3).
///
/// Lines of one name stay separate until `subscript(_:)` joins them, because joining changes the meaning of a few
/// fields (`Set-Cookie`, `Age`, dates). A value that is not UTF-8 has the form of ``FieldText``. A value type; copies
/// share storage. Lookups take time linear in the number of lines, which beats hashing for typical messages.
public struct HeaderFields: Sendable {
  @usableFromInline
  struct Line: Sendable, Hashable {
    @usableFromInline var name: String
    @usableFromInline var value: String

    @usableFromInline
    init(name: String, value: String) {
      self.name = name
      self.value = value
    }
  }

  @usableFromInline var lines: [Line]

  /// Creates an empty list.
  @inlinable
  public init() {
    lines = []
  }

  /// Creates fields from lines, in order.
  ///
  /// Names and values are not checked: `isWellFormed` checks whether a message may contain them, and `sanitized()`
  /// repairs them.
  public init(_ lines: [(String, String)]) {
    self.lines = lines.map { Line(name: $0.0, value: $0.1) }
  }

  /// Reserves capacity for `count` lines.
  public mutating func reserveCapacity(_ count: Int) {
    lines.reserveCapacity(count)
  }

  /// Appends a line, even if lines of this name exist.
  @inlinable
  public mutating func append(name: String, value: String) {
    lines.append(Line(name: name, value: value))
  }

  /// Replaces all lines of `name` with one line, at the position of the first, or at the end.
  public mutating func set(_ name: String, _ value: String) {
    set(name, values: [value])
  }

  /// Replaces all lines of `name` with one line per value, at the position of the first, or at the end.
  public mutating func set(_ name: String, values: [String]) {
    let place = lines.firstIndex { $0.name.equalsIgnoringCase(name) }
    let added = values.map { Line(name: name, value: $0) }
    guard let place else {
      lines += added
      return
    }
    lines.removeAll { $0.name.equalsIgnoringCase(name) }
    lines.insert(contentsOf: added, at: place)
  }

  /// Removes all lines of `name`.
  public mutating func remove(_ name: String) {
    lines.removeAll { $0.name.equalsIgnoringCase(name) }
  }

  /// Returns the values of all lines of `name`, in order.
  public func values(of name: String) -> [String] {
    var found: [String] = []
    for line in lines where line.name.equalsIgnoringCase(name) { found.append(line.value) }
    return found
  }

  /// Returns the value of the first line of `name`.
  public func first(_ name: String) -> String? {
    for line in lines where line.name.equalsIgnoringCase(name) { return line.value }
    return nil
  }

  /// Whether a line of `name` exists.
  public func contains(_ name: String) -> Bool {
    lines.contains { $0.name.equalsIgnoringCase(name) }
  }

  /// The value of `name`: its lines joined with a comma and a space (RFC 9110, section 5.3); `nil` without a line.
  ///
  /// Assigning replaces all its lines with one, at the position of the first. Assigning `nil` removes them. Not for
  /// `Set-Cookie`, whose lines must not be joined; see `values(of:)`.
  public subscript(name: String) -> String? {
    get {
      var joined: String?
      for line in lines where line.name.equalsIgnoringCase(name) {
        if joined == nil {
          joined = line.value
        } else {
          joined! += ", "
          joined! += line.value
        }
      }
      return joined
    }
    set {
      if let newValue { set(name, newValue) } else { remove(name) }
    }
  }
}

extension HeaderFields {
  /// The maximum number of lines of a stored response: 1,000. Servers and browsers stop at a few hundred.
  public static let maximumStoredCount = 1000
  /// The maximum size of the names and values of a stored response: 256 KiB, as in browsers.
  public static let maximumStoredByteCount = 256 << 10

  /// Whether the fields are few and short enough for storing.
  ///
  /// Some decisions compare each field with every other one, which takes seconds for tens of thousands of fields.
  ///
  /// - Complexity: Linear in the number of lines, up to ``maximumStoredCount``.
  public var isStorable: Bool {
    guard lines.count <= Self.maximumStoredCount else { return false }
    var byteCount = 0
    for line in lines { byteCount += line.name.utf8.count + line.value.utf8.count }
    return byteCount <= Self.maximumStoredByteCount
  }
}

extension HeaderFields: RandomAccessCollection {
  /// A line.
  public typealias Element = (name: String, value: String)

  /// The position of the first line.
  @inlinable public var startIndex: Int { 0 }
  /// The position after the last line.
  @inlinable public var endIndex: Int { lines.count }

  /// The line at a position.
  @inlinable
  public subscript(position: Int) -> (name: String, value: String) {
    (lines[position].name, lines[position].value)
  }
}

extension HeaderFields: Hashable {
  /// Whether both have the same lines in the same order; names are case-insensitive.
  public static func == (left: HeaderFields, right: HeaderFields) -> Bool {
    left.lines.count == right.lines.count
      && zip(left.lines, right.lines).allSatisfy {
        $0.name.equalsIgnoringCase($1.name) && $0.value == $1.value
      }
  }

  /// Hashes the values that `==` compares.
  public func hash(into hasher: inout Hasher) {
    hasher.combine(lines.count)
    for line in lines {
      hasher.combine(line.name.asciiLowercased())
      hasher.combine(line.value)
    }
  }
}

extension HeaderFields: ExpressibleByDictionaryLiteral {
  /// Creates fields from lines, in order; a name may be repeated.
  public init(dictionaryLiteral elements: (String, String)...) {
    self.init(elements)
  }
}
