/// Building 206 answers, and putting stored parts together (RFC 9111, 3.3 and 3.4; RFC 9110, 15.3.7).
public enum PartialContent {
  /// What to do with a 206 when something is stored for the same key and selection.
  public enum Combination: Sendable, Hashable {
    /// Store one response made of `pieces`, in this order, with these fields and facts. It is a 200 if `status` says
    /// so, else a 206 (`facts.flags.incomplete`).
    case combine(status: Int, fields: HTTPFields, facts: FreshnessFacts, pieces: [Piece])
    /// Store the part alone, in place of what is stored.
    case replace(Rule)
  }

  /// A run of bytes of a combined body.
  public enum Piece: Sendable, Hashable {
    /// These positions of the stored body, counted from its first byte.
    case stored(Range<Int>)
    /// These positions of the new part's body, counted from its first byte.
    case new(Range<Int>)
  }

  /// How to combine a new part with `stored`, which is a 200 or a 206.
  /// - Parameters:
  ///   - fields: what `Storability` said to keep of the new 206.
  ///   - facts: the facts it gave.
  ///   - byteCount: the number of body bytes received.
  public static func combine(
    fields: HTTPFields, facts: FreshnessFacts, byteCount: Int, stored: some StoredResponseView
  ) -> Combination {
    // 9111 3.4, 9110 15.3.7.3: one strong validator.
    guard let tag = EntityTag(stored: fields), let storedTag = EntityTag(stored: stored.fields),
      tag.matchesStrongly(storedTag)
    else { return .replace(.noStrongValidator) }
    // 9110 14.4: never by an invalid Content-Range, nor one that the bytes contradict.
    guard let new = fields.single("content-range").flatMap({ ContentRange($0) }), let newSpan = new.range,
      newSpan.count == byteCount, let held = heldRange(of: stored, isExact: true)
    else { return .replace(.partsApart) }
    let storedLength = completeLength(of: stored)
    if let storedLength, let length = new.completeLength, storedLength != length { return .replace(.partsApart) }
    let length = new.completeLength ?? storedLength
    // They overlap or touch, and end inside the whole.
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
    var combinedFacts = facts
    // 9110 15.3.7.3: what covers everything is a complete 200.
    if length == union.count {
      combined.remove("Content-Range")
      combinedFacts.flags.remove(.incomplete)
      return .combine(status: 200, fields: combined, facts: combinedFacts, pieces: pieces)
    }
    combined.set("Content-Range", ContentRange(range: union, completeLength: length).rendered)
    combinedFacts.flags.insert(.incomplete)
    return .combine(status: 206, fields: combined, facts: combinedFacts, pieces: pieces)
  }

  /// The fields that ask for what a stored part lacks: `Range`, and `If-Range` with its strong tag; `nil` if it cannot be
  /// completed by one request for its beginning or end.
  static func completion(of stored: some StoredResponseView, for request: RequestHead) -> HTTPFields? {
    guard request.method == "GET", RangeRequest(request.fields) == .none, let tag = EntityTag(stored: stored.fields),
      !tag.isWeak, let held = heldRange(of: stored, isExact: true)
    else { return nil }
    var fields = HTTPFields()
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

  /// The positions in the stored body that hold `range` of the representation; `nil` if it is not wholly stored.
  public static func bodyRange(of range: ByteRange, in stored: some StoredResponseView) -> Range<Int>? {
    guard let held = heldRange(of: stored, isExact: false), held.contains(range) else { return nil }
    return range.first - held.first..<range.last - held.first + 1
  }

  /// The head of a 206 answer for `.partial`.
  public static func head(for stored: some StoredResponseView, range: ByteRange, age: Int) -> ResponseHead {
    var fields = Reuse.answerFields(for: stored, age: age)
    let length = completeLength(of: stored)
    fields.set("Content-Range", ContentRange(range: range, completeLength: length).rendered)
    fields.set("Content-Length", String(range.count))
    return ResponseHead(status: 206, fields: fields)
  }

  /// The head of a 416 answer for `.unsatisfiableRange`.
  public static func unsatisfiableHead(completeLength: Int) -> ResponseHead {
    ResponseHead(
      status: 416, fields: ["Content-Range": "bytes */\(max(0, completeLength))", "Content-Length": "0"])
  }

  /// The length of the whole of which `stored` holds all or a part; `nil`: not known.
  static func completeLength(of stored: some StoredResponseView) -> Int? {
    guard stored.facts.flags.contains(.incomplete) else { return stored.bodyByteCount }
    return stored.fields.single("content-range").flatMap { ContentRange($0) }?.completeLength
  }

  /// The bytes of the representation that are stored. A body shorter than its `Content-Range` says broke off, and holds
  /// the beginning of it; with `isExact` such a one counts for nothing, as does a longer one always.
  private static func heldRange(of stored: some StoredResponseView, isExact: Bool) -> ByteRange? {
    let count = stored.bodyByteCount
    guard count > 0 else { return nil }
    guard stored.facts.flags.contains(.incomplete) else { return ByteRange(first: 0, last: count - 1) }
    guard let span = stored.fields.single("content-range").flatMap({ ContentRange($0) })?.range,
      isExact ? count == span.count : count <= span.count
    else { return nil }
    return ByteRange(first: span.first, last: span.first + (count - 1))
  }
}

extension HTTPFields {
  /// These fields with every field that `newer` gives put in place of the old lines of its name, except `names` (lower
  /// case). RFC 9111, 3.2.
  func updated(from newer: HTTPFields, except names: Set<String>) -> HTTPFields {
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
