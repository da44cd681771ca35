public import FoundationEssentials

/// A request through a cache, as it is recorded while a process watches.
public struct RequestEvent: Sendable, Hashable {
  /// The time at which the response was available.
  public var time: Date
  /// The process that made the request.
  public var processID: Int32
  /// The request's method.
  public var method: String
  /// The request's URL with its query; only its beginning if ``isURLTruncated``.
  public var url: String
  /// Whether the URL is longer than an event holds.
  public var isURLTruncated = false
  /// The status code of the response; 0 without a response.
  public var status: Int
  /// The way in which the request ended.
  public var outcome: RequestOutcome
  /// The ID of the rule that decided.
  public var rule: String
  /// The age of the response in seconds.
  public var age: Int
  /// The remaining freshness lifetime in seconds, negative if the response is stale; nil if it is not known.
  public var timeToLive: Int?
  /// The size of the body in bytes; 0 for a body from the origin whose size was not known with its head.
  public var byteCount: Int
  /// The duration in nanoseconds, until the head was available.
  public var nanoseconds: Int
  /// The content of a query that is a part of its cache key; nil for other requests.
  public var content: Content?

  /// The content of a query, which itself is not recorded.
  public struct Content: Sendable, Hashable {
    /// The keyed digest of the content and the fields that change its meaning, as in the cache key.
    public var digest: String
    /// The size in bytes.
    public var byteCount: Int

    /// Creates the description of a content.
    package init(digest: String, byteCount: Int) {
      self.digest = digest
      self.byteCount = byteCount
    }
  }

  package init(
    time: Date, processID: Int32, method: String, url: String, status: Int, outcome: RequestOutcome, rule: String,
    age: Int, timeToLive: Int?, byteCount: Int, nanoseconds: Int
  ) {
    self.time = time
    self.processID = processID
    self.method = method
    self.url = url
    self.status = status
    self.outcome = outcome
    self.rule = rule
    self.age = age
    self.timeToLive = timeToLive
    self.byteCount = byteCount
    self.nanoseconds = nanoseconds
  }
}

extension RequestOutcome {
  /// The number of an outcome in the file of events.
  var code: UInt64 { UInt64(Self.allCases.firstIndex(of: self) ?? 0) }

  init?(code: UInt64) {
    guard code < UInt64(Self.allCases.count) else { return nil }
    self = Self.allCases[Int(code)]
  }
}

/// An event as the words of its slot, after the sequence number and the checksum.
///
/// | Word | Contents |
/// |---|---|
/// | 0 | the time in microseconds since 1970 |
/// | 1 | the PID in 32 bits, the status in 16, the outcome in 8; bit 56 if the URL is cut; the length of the digest above |
/// | 2 | the age and the TTL in seconds, 32 bits each; the TTL is −2³¹ if unknown |
/// | 3, 4 | the size of the body in bytes, and the duration in nanoseconds |
/// | 5 | the lengths of the method and the rule in 8 bits each, of the URL in 16; the size of a query's content in 32 |
/// | 6 to 61 | the bytes of the method, the rule, the digest and the URL |
struct EventWords {
  static let wordCount = 62
  /// The position of the text: method, rule, digest of the content, and URL.
  private static let textWord = 6
  private static let textByteCount = (wordCount - textWord) * 8
  private static let maximumMethodByteCount = 16
  private static let maximumDigestByteCount = 64
  private static let unknownTimeToLive = UInt64(UInt32(bitPattern: .min))

  var words: InlineArray<62, UInt64>

  init(_ event: RequestEvent) {
    words = InlineArray(repeating: 0)
    var used = 0
    func clamped(_ value: Int) -> UInt64 { UInt64(UInt32(bitPattern: Int32(clamping: value))) }
    words[0] = UInt64(max(event.time.timeIntervalSince1970, 0) * 1e6)
    words[2] = clamped(event.age) | (event.timeToLive.map { clamped(max($0, -.max)) } ?? Self.unknownTimeToLive) << 32
    words[3] = UInt64(max(event.byteCount, 0))
    words[4] = UInt64(max(event.nanoseconds, 0))
    let method = append(event.method, limit: Self.maximumMethodByteCount, &used)
    let rule = append(event.rule, limit: ActivityLayout.maximumRuleByteCount, &used)
    let digest = append(event.content?.digest ?? "", limit: Self.maximumDigestByteCount, &used)
    let url = append(event.url, limit: Self.textByteCount - used, &used)
    words[1] =
      UInt64(UInt32(bitPattern: event.processID)) | UInt64(UInt16(clamping: event.status)) << 32
      | event.outcome.code << 48 | (event.isURLTruncated || url < event.url.utf8.count ? 1 << 56 : 0)
      | UInt64(digest) << 57
    let content = event.content.map { UInt64(UInt32(clamping: $0.byteCount)) } ?? 0
    words[5] = UInt64(method) | UInt64(rule) << 8 | UInt64(url) << 16 | content << 32
  }

  init(words: InlineArray<62, UInt64>) {
    self.words = words
  }

  /// Appends the start of a text, and returns the number of its bytes.
  private mutating func append(_ text: String, limit: Int, _ used: inout Int) -> Int {
    let start = Self.textWord * 8 + used
    var text = text
    let count = text.withUTF8 { bytes in
      let count = min(bytes.count, limit)
      withUnsafeMutableBytes(of: &words) { $0[start...].copyBytes(from: bytes[..<count]) }
      return count
    }
    used += count
    return count
  }

  /// The number of bytes of the method, the rule, the digest and the URL.
  private var textCounts: (method: Int, rule: Int, digest: Int, url: Int) {
    (Int(words[5] & 0xff), Int(words[5] >> 8 & 0xff), Int(words[1] >> 57), Int(words[5] >> 16 & 0xffff))
  }

  private var textByteCount: Int {
    let counts = textCounts
    return counts.method + counts.rule + counts.digest + counts.url
  }

  /// The number of words that hold the event; the others are not written.
  var usedWordCount: Int {
    min(Self.textWord + (textByteCount + 7) / 8, Self.wordCount)
  }

  /// The event; nil if the words are corrupt.
  var event: RequestEvent? {
    let counts = textCounts
    guard let outcome = RequestOutcome(code: words[1] >> 48 & 0xff), textByteCount <= Self.textByteCount else {
      return nil
    }
    var used = 0
    func text(_ count: Int) -> String {
      let start = Self.textWord * 8 + used
      used += count
      return withUnsafeBytes(of: words) { String(decoding: $0[start..<(start + count)], as: UTF8.self) }
    }
    func signed(_ word: UInt64) -> Int { Int(Int32(bitPattern: UInt32(truncatingIfNeeded: word))) }
    let (method, rule) = (text(counts.method), text(counts.rule))
    let (digest, url) = (text(counts.digest), text(counts.url))
    let timeToLive = words[2] >> 32
    var event = RequestEvent(
      time: Date(timeIntervalSince1970: Double(words[0]) / 1e6),
      processID: Int32(bitPattern: UInt32(truncatingIfNeeded: words[1])), method: method, url: url,
      status: Int(words[1] >> 32 & 0xffff), outcome: outcome, rule: rule, age: signed(words[2]),
      timeToLive: timeToLive == Self.unknownTimeToLive ? nil : signed(timeToLive),
      byteCount: Int(clamping: words[3]), nanoseconds: Int(clamping: words[4]))
    event.isURLTruncated = words[1] >> 56 & 1 != 0
    if !digest.isEmpty { event.content = RequestEvent.Content(digest: digest, byteCount: Int(words[5] >> 32)) }
    return event
  }

  /// A digest that detects a slot of two writers.
  func checksum(sequence: UInt64) -> UInt64 {
    var sum = sequence
    for index in 0..<usedWordCount {
      sum = (sum ^ words[index]) &* 0x9E37_79B9_7F4A_7C15
      sum ^= sum >> 29
    }
    return sum
  }
}
