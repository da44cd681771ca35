/// Creating 206 responses, and combining incomplete responses (RFC 9111, 3.3 and 3.4; RFC 9110, 15.3.7).
public enum PartialContent {
  /// The treatment of a new 206 if a response with its cache key and Vary key is already stored.
  public enum Combination: Sendable, Hashable {
    /// Store one response made of `pieces`, in this order, with these fields and freshness.
    ///
    /// The status is 200 if the pieces are the complete body, otherwise 206 (`freshness.flags.incomplete`).
    case combine(status: Int, fields: HeaderFields, freshness: FreshnessInfo, pieces: [Piece])
    /// Store only the new part, in place of the stored response.
    case replace(Rule)
  }

  /// A sequence of bytes of a combined body.
  public enum Piece: Sendable, Hashable {
    /// Offsets in the stored body.
    case stored(Range<Int>)
    /// Offsets in the body of the new part.
    case new(Range<Int>)
  }

  /// Decides how to combine a new part with `stored`, which is a 200 or a 206.
  /// - Parameters:
  ///   - fields: The fields of the new 206 from `Storability`.
  ///   - freshness: Its freshness from `Storability`.
  ///   - byteCount: The number of body bytes received.
  ///   - stored: The stored response, with its body.
  public static func combine(
    fields: HeaderFields, freshness: FreshnessInfo, byteCount: Int, stored: some StoredResponseMetadata
  ) -> Combination {
    // 9111 3.4, 9110 15.3.7.3: both need the same strong validator.
    guard let tag = EntityTag(stored: fields), let storedTag = EntityTag(stored: stored.fields),
      tag.matchesStrongly(storedTag)
    else { return .replace(.noStrongValidator) }
    // 9110 14.4: a Content-Range that is invalid or contradicts the bytes cannot be combined.
    guard let new = fields.single("content-range").flatMap({ ContentRange($0) }), let newSpan = new.range,
      newSpan.count == byteCount, !freshness.flags.contains(.decoded), let held = heldRange(of: stored, isExact: true)
    else { return .replace(.partsApart) }
    let storedLength = completeLength(of: stored)
    if let storedLength, let length = new.completeLength, storedLength != length { return .replace(.partsApart) }
    let length = new.completeLength ?? storedLength
    // The parts must overlap or be adjacent, and end within the complete length.
    guard newSpan.first <= held.last + 1, held.first <= newSpan.last + 1,
      let union = ByteRange(first: min(held.first, newSpan.first), last: max(held.last, newSpan.last)),
      length.map({ union.last < $0 }) ?? true
    else { return .replace(.partsApart) }

    var pieces: [Piece] = []
    if held.first < newSpan.first { pieces.append(.stored(0..<newSpan.first - held.first)) }
    pieces.append(.new(0..<byteCount))
    if newSpan.last < held.last { pieces.append(.stored(newSpan.last - held.first + 1..<held.count)) }

    // 9111 3.4: the new response's fields replace the stored ones, except Content-Range.
    var combined = stored.fields.updated(from: fields, except: ["content-length", "content-range"])
    combined.set("Content-Length", String(union.count))
    var combinedFreshness = freshness
    // 9110 15.3.7.3: a combination that covers everything is a complete 200.
    if length == union.count {
      combined.remove("Content-Range")
      combinedFreshness.flags.remove(.incomplete)
      return .combine(status: 200, fields: combined, freshness: combinedFreshness, pieces: pieces)
    }
    combined.set("Content-Range", ContentRange(range: union, completeLength: length).rendered)
    combinedFreshness.flags.insert(.incomplete)
    return .combine(status: 206, fields: combined, freshness: combinedFreshness, pieces: pieces)
  }

  /// Whether a stored incomplete response has bytes of the representation that a complete response contains.
  ///
  /// - Parameters:
  ///   - fields: The fields of the complete response from `Storability`.
  ///   - freshness: Its freshness from `Storability`.
  package static func isPart(
    _ stored: some StoredResponseMetadata, ofResponseWith fields: HeaderFields, _ freshness: FreshnessInfo
  ) -> Bool {
    isSameRepresentation(fields, stored.fields) && !freshness.flags.contains(.decoded)
  }

  /// Whether two responses have the same strong validator, so that their bytes can be combined (RFC 9110, 15.3.7.3).
  package static func isSameRepresentation(_ one: HeaderFields, _ other: HeaderFields) -> Bool {
    guard let tag = EntityTag(stored: one), let otherTag = EntityTag(stored: other) else { return false }
    return tag.matchesStrongly(otherTag)
  }

  /// Returns the fields and the freshness with which the received part of a 200 whose body was cut is stored as a 206
  /// (RFC 9111, section 3.3).
  ///
  /// `nil` if the rest cannot be requested: without a strong validator, for decoded content, or if the origin serves no
  /// ranges.
  package static func beginning(
    ofResponseWith fields: HeaderFields, _ freshness: FreshnessInfo, byteCount: Int, completeLength: Int
  ) -> (fields: HeaderFields, freshness: FreshnessInfo)? {
    guard byteCount > 0, byteCount < completeLength, let tag = EntityTag(stored: fields), !tag.isWeak,
      !freshness.flags.contains(.decoded), fields["Accept-Ranges"]?.equalsIgnoringCase("none") != true,
      let range = ByteRange(first: 0, last: byteCount - 1)
    else { return nil }
    var fields = fields
    fields.set("Content-Length", String(byteCount))
    fields.set("Content-Range", ContentRange(range: range, completeLength: completeLength).rendered)
    var freshness = freshness
    freshness.flags.insert(.incomplete)
    return (fields, freshness)
  }

  /// Returns the fields that request the missing bytes of an incomplete response: `Range` and `If-Range`.
  ///
  /// `nil` if the response has no strong tag, or if one range cannot complete it.
  static func completion(of stored: some StoredResponseMetadata, for request: RequestHead) -> HeaderFields? {
    guard request.method == "GET", RangeRequest(request.fields) == .none, let tag = EntityTag(stored: stored.fields),
      !tag.isWeak, let held = heldRange(of: stored, isExact: true)
    else { return nil }
    var fields = HeaderFields()
    if held.first == 0 {
      fields.set("Range", "bytes=\(held.last + 1)-")
    } else if let length = completeLength(of: stored), held.last == length - 1 {
      fields.set("Range", "bytes=0-\(held.first - 1)")
    } else {
      return nil
    }
    fields.set("If-Range", tag.rendered)
    return fields
  }

  /// Returns the offsets of `range` in the stored body; `nil` if the range is not completely stored.
  public static func bodyRange(of range: ByteRange, in stored: some StoredResponseMetadata) -> Range<Int>? {
    guard let held = heldRange(of: stored, isExact: false), held.contains(range) else { return nil }
    return range.first - held.first..<range.last - held.first + 1
  }

  /// Returns the head of a 206 response for `.partial`.
  public static func head(for stored: some StoredResponseMetadata, range: ByteRange, age: Int) -> ResponseHead {
    var fields = Reuse.responseFields(for: stored, age: age)
    let length = completeLength(of: stored)
    fields.set("Content-Range", ContentRange(range: range, completeLength: length).rendered)
    fields.set("Content-Length", String(range.count))
    return ResponseHead(status: 206, fields: fields)
  }

  /// Returns the head of a 416 response for `.unsatisfiableRange`.
  public static func unsatisfiableHead(completeLength: Int) -> ResponseHead {
    ResponseHead(
      status: 416, fields: ["Content-Range": "bytes */\(max(0, completeLength))", "Content-Length": "0"])
  }

  /// Returns the length of the complete representation; `nil` if unknown.
  static func completeLength(of stored: some StoredResponseMetadata) -> Int? {
    guard stored.freshness.flags.contains(.incomplete) else { return stored.bodyByteCount }
    return stored.fields.single("content-range").flatMap { ContentRange($0) }?.completeLength
  }

  /// Returns the stored range of the representation; `nil` if the body is empty or longer than its `Content-Range`.
  ///
  /// A body that is shorter than its `Content-Range` was truncated and has the beginning of the range.
  /// - Parameter isExact: Whether to return `nil` also for a truncated body, and for one without its content coding:
  ///   the ranges of the origin count encoded bytes.
  private static func heldRange(of stored: some StoredResponseMetadata, isExact: Bool) -> ByteRange? {
    let count = stored.bodyByteCount
    guard count > 0, !(isExact && stored.freshness.flags.contains(.decoded)) else { return nil }
    guard stored.freshness.flags.contains(.incomplete) else { return ByteRange(first: 0, last: count - 1) }
    guard let span = stored.fields.single("content-range").flatMap({ ContentRange($0) })?.range,
      isExact ? count == span.count : count <= span.count
    else { return nil }
    return ByteRange(first: span.first, last: span.first + (count - 1))
  }
}

extension HeaderFields {
  /// Returns the fields with the lines of `newer` in place of the old lines of the same name (RFC 9111, section 3.2).
  ///
  /// Keeps the fields in `names`, which are lowercase.
  package func updated(from newer: HeaderFields, except names: Set<String>) -> HeaderFields {
    var updated = self
    var seen: Set<String> = []
    for (name, _) in newer {
      let lowercased = name.asciiLowercased()
      guard !names.contains(lowercased), seen.insert(lowercased).inserted else { continue }
      updated.set(name, values: newer.values(of: name))
    }
    return updated
  }
}
