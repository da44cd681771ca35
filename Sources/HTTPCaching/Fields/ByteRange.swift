/// A non-empty range of bytes of a representation, both ends included, as in `Content-Range` (RFC 9110, section 14).
public struct ByteRange: Sendable, Hashable {
  /// The position of the first byte; not negative.
  public let first: Int
  /// The position of the last byte; at least `first`, and less than `Int.max`.
  public let last: Int

  /// Creates a range; `nil` unless `0 <= first <= last < Int.max`.
  public init?(first: Int, last: Int) {
    guard first >= 0, first <= last, last < Int.max else { return nil }
    self.first = first
    self.last = last
  }

  /// The number of bytes.
  public var count: Int { last - first + 1 }

  /// Whether `other` is completely within this range.
  public func contains(_ other: ByteRange) -> Bool { first <= other.first && other.last <= last }
}

/// The value of a `Content-Range` field in bytes. RFC 9110, 14.4.
public struct ContentRange: Sendable, Hashable {
  /// The enclosed range; `nil` in a 416 (`bytes */1234`).
  public let range: ByteRange?
  /// The length of the complete representation; `nil` if unknown (`bytes 0-9/*`).
  public let completeLength: Int?

  /// Creates a value from its parts.
  public init(range: ByteRange?, completeLength: Int?) {
    self.range = range
    self.completeLength = completeLength
  }

  /// Parses a field value; `nil` if it is malformed, contradictory, or in another unit than bytes.
  public init?(_ value: String) {
    let text = value.trimmingFieldSpace()
    let words = text.utf8.split(separator: 0x20, maxSplits: 1, omittingEmptySubsequences: false)
    guard words.count == 2, String(Substring(words[0])).equalsIgnoringCase("bytes") else { return nil }
    let halves = words[1].split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
    guard halves.count == 2 else { return nil }

    var length: Int?
    if !halves[1].elementsEqual("*".utf8) {
      guard let number = Int(digits: halves[1]) else { return nil }
      length = number
    }
    if halves[0].elementsEqual("*".utf8) {
      guard length != nil else { return nil }
      self.init(range: nil, completeLength: length)
      return
    }
    let ends = halves[0].split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
    guard ends.count == 2, let first = Int(digits: ends[0]), let last = Int(digits: ends[1]),
      let range = ByteRange(first: first, last: last), length.map({ last < $0 }) ?? true
    else { return nil }
    self.init(range: range, completeLength: length)
  }

  /// The field value.
  public var rendered: String {
    let span = range.map { "\($0.first)-\($0.last)" } ?? "*"
    return "bytes \(span)/\(completeLength.map(String.init) ?? "*")"
  }
}

/// The range that the `Range` field of a request asks for (RFC 9110, sections 14.1.2 and 14.2).
enum RangeRequest: Hashable {
  /// No range, another unit, or a malformed value: the field is ignored.
  case none
  /// From a first byte to a last byte, or to the end.
  case from(Int, through: Int?)
  /// This many bytes at the end.
  case suffix(Int)
  /// Several ranges.
  case multiple

  init(_ fields: HeaderFields) {
    let values = fields.values(of: "range")
    guard values.count == 1 else {
      self = .none
      return
    }
    self.init(value: values[0])
  }

  init(value: String) {
    self = .none
    let text = value.trimmingFieldSpace()
    let halves = text.utf8.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
    guard halves.count == 2, String(Substring(halves[0])).equalsIgnoringCase("bytes") else { return }
    let specs = String(Substring(halves[1])).listElements
    if specs.count > 1 {
      self = .multiple
      return
    }
    guard let spec = specs.first else { return }
    let ends = spec.utf8.split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
    guard ends.count == 2 else { return }
    // A number that is too large for an Int becomes the highest position, which is outside any body.
    let first = saturatingPosition(ends[0])
    let last = saturatingPosition(ends[1])
    switch (first, last, ends[0].isEmpty, ends[1].isEmpty) {
    case (nil, let count?, true, false): self = .suffix(count)
    case (let first?, nil, false, true): self = .from(first, through: nil)
    case (let first?, let last?, false, false) where first <= last: self = .from(first, through: last)
    default: break
    }
  }

  enum Resolution: Hashable {
    case span(ByteRange)
    /// No byte of the range exists.
    case outside
    /// The length of the complete representation is needed and unknown.
    case unknown
  }

  /// Returns the range within a representation of `length` bytes (`nil`: unknown). Not for `none` and `multiple`.
  func resolved(length: Int?) -> Resolution {
    switch self {
    case .none, .multiple: return .unknown
    case .from(let first, let through):
      guard let length else {
        guard let through, let span = ByteRange(first: first, last: through) else { return .unknown }
        return .span(span)
      }
      guard first < length else { return .outside }
      return ByteRange(first: first, last: min(through ?? Int.max, length - 1)).map { .span($0) } ?? .outside
    case .suffix(let count):
      guard let length else { return .unknown }
      guard count > 0, length > 0 else { return .outside }
      return ByteRange(first: length - min(count, length), last: length - 1).map { .span($0) } ?? .outside
    }
  }
}

/// Parses digits; a number that is too large becomes the highest position.
private func saturatingPosition(_ digits: Substring.UTF8View) -> Int? {
  guard !digits.isEmpty, digits.allSatisfy(\.isDigit) else { return nil }
  return Int(Substring(digits)) ?? Int.max - 1
}
