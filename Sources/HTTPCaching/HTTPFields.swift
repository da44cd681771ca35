/// The header fields of one message: ordered lines whose names compare without regard to case.
///
/// Several lines of one name stay apart until `subscript(_:)` joins them, because a few fields (`Set-Cookie`, `Age`,
/// dates) change their meaning when joined. A value type; copies share storage. Lookups cost time linear in the number
/// of lines, which beats hashing for the two dozen lines that messages have. RFC 9110, 5.1 to 5.3.
public struct HTTPFields: Sendable {
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

  /// No fields.
  @inlinable
  public init() {
    lines = []
  }

  /// The given lines in their order. Names and values are taken as they are: `isWellFormed` says whether they may stand
  /// in a message, and `sanitized()` makes them so.
  public init(_ lines: [(String, String)]) {
    self.lines = lines.map { Line(name: $0.0, value: $0.1) }
  }

  /// Reserves room for `count` lines.
  public mutating func reserveCapacity(_ count: Int) {
    lines.reserveCapacity(count)
  }

  /// Adds a line at the end, whatever lines of that name exist.
  @inlinable
  public mutating func append(name: String, value: String) {
    lines.append(Line(name: name, value: value))
  }

  /// Replaces every line of `name` by one line with `value`, in the place of the first, else at the end.
  public mutating func set(_ name: String, _ value: String) {
    set(name, values: [value])
  }

  /// Replaces every line of `name` by one line for each of `values`, in the place of the first, else at the end.
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

  /// Removes every line of `name`.
  public mutating func remove(_ name: String) {
    lines.removeAll { $0.name.equalsIgnoringCase(name) }
  }

  /// Removes every line whose name and value satisfy `matches`.
  public mutating func removeAll(where matches: (_ name: String, _ value: String) -> Bool) {
    lines.removeAll { matches($0.name, $0.value) }
  }

  /// The values of all lines of `name`, in order.
  public func values(of name: String) -> [String] {
    var found: [String] = []
    for line in lines where line.name.equalsIgnoringCase(name) { found.append(line.value) }
    return found
  }

  /// The value of the first line of `name`.
  public func first(_ name: String) -> String? {
    for line in lines where line.name.equalsIgnoringCase(name) { return line.value }
    return nil
  }

  /// Whether a line of `name` exists.
  public func contains(_ name: String) -> Bool {
    lines.contains { $0.name.equalsIgnoringCase(name) }
  }

  /// The value of `name`: its lines joined with a comma and a space (RFC 9110, 5.3); `nil` without any line. Assigning
  /// replaces all its lines by one, in the place of the first; assigning `nil` removes them.
  ///
  /// Not for `Set-Cookie`, whose lines must not be joined: see `values(of:)`.
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

extension HTTPFields {
  /// The most lines that a stored response has: 1,000. Servers and browsers stop at a few hundred.
  public static let maximumStoredCount = 1000
  /// The most bytes that the names and values of a stored response take together: 256 KiB, as much as browsers take.
  public static let maximumStoredByteCount = 256 << 10

  /// Whether these fields are few and short enough to be stored. Some decisions compare each field with each other one,
  /// which takes seconds for tens of thousands.
  ///
  /// - Complexity: Linear in the number of lines; constant for too many.
  public var isStorable: Bool {
    guard lines.count <= Self.maximumStoredCount else { return false }
    var byteCount = 0
    for line in lines { byteCount += line.name.utf8.count + line.value.utf8.count }
    return byteCount <= Self.maximumStoredByteCount
  }
}

extension HTTPFields: RandomAccessCollection {
  /// One line.
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

extension HTTPFields: Hashable {
  /// Whether both hold the same lines in the same order, names compared without case.
  public static func == (left: HTTPFields, right: HTTPFields) -> Bool {
    left.lines.count == right.lines.count
      && zip(left.lines, right.lines).allSatisfy {
        $0.name.equalsIgnoringCase($1.name) && $0.value == $1.value
      }
  }

  /// Hashes what `==` compares.
  public func hash(into hasher: inout Hasher) {
    hasher.combine(lines.count)
    for line in lines {
      hasher.combine(line.name.asciiLowercased())
      hasher.combine(line.value)
    }
  }
}

extension HTTPFields: ExpressibleByDictionaryLiteral {
  /// The given lines in their order; a name may come twice.
  public init(dictionaryLiteral elements: (String, String)...) {
    self.init(elements)
  }
}
