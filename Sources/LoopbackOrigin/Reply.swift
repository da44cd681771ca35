import FoundationEssentials

/// The reply to a request: a well-formed response, or one that is truncated, stalls or is invalid, byte for byte.
///
/// The status line, the fields and the body are sent exactly as given. The origin adds only the framing field
/// (`Content-Length` or `Transfer-Encoding`), unless `fields` has one of the two. There is no `Date` unless `fields`
/// has it.
///
/// ```swift
/// Reply(200, [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")], "hello")
/// Reply(200, body: "hello").chunked(trailers: [("ETag", "\"1\"")])
/// Reply(200, body: "hello").held(at: gate, afterBodyBytes: 2)
/// Reply(200, body: "hello").cut(.inBody(after: 2))
/// Reply.raw("HTTP/1.1 200 OK\r\nno colon here\r\n\r\n")
/// ```
public struct Reply: Sendable {
  /// A part of a reply.
  public enum Part: Sendable {
    /// Sends these bytes.
    case bytes(Data)
    /// Waits until the gate opens, the client disconnects, or the origin stops.
    case hold(Gate)
    /// Repeats these bytes, as fast as the client reads, until the client disconnects or the origin stops.
    case endless(Data)
    /// Closes the connection.
    case close
    /// Resets the connection: the client receives an error, and may lose unread bytes.
    case reset
    /// A chunk size line that is not a number. Only for a chunked body.
    case brokenChunk

    /// Returns the UTF-8 bytes of `text`.
    public static func text(_ text: String) -> Part { .bytes(Data(text.utf8)) }
  }

  /// The way in which the end of the body is announced.
  public enum Framing: Sendable {
    /// `Content-Length` with the body's length. A body with `endless` has none, and ends with the connection.
    case contentLength
    /// `Content-Length` with this number. If the body's length differs, the connection is closed after the body.
    case declaredLength(Int)
    /// `Transfer-Encoding: chunked` with chunks of at most this many bytes, and these trailer fields at the end.
    case chunked(byteCount: Int, trailers: [(String, String)])
    /// No announcement: the body ends when the connection is closed.
    case untilClose
  }

  /// The position at which a reply is truncated by closing the connection.
  public enum Cut: Sendable {
    /// Before the first byte.
    case beforeHead
    /// After this many bytes of the head.
    case inHead(after: Int)
    /// After this many bytes of the body; the end of the body is not sent.
    case inBody(after: Int)
  }

  /// The status code.
  public var status: Int

  /// The header fields in order, as names and values.
  public var fields: [(String, String)]

  /// The parts of the body. Not sent in reply to HEAD, or with the status codes 204 and 304.
  public var parts: [Part]

  /// The way in which the end of the body is announced.
  public var framing: Framing

  /// Interim responses (RFC 9110 section 15.2) to send first: 100, 102 or 103 with their fields.
  public var interim: [(status: Int, fields: [(String, String)])] = []

  /// Parts before the status line of the final response, after any interim response.
  public var partsBeforeHead: [Part] = []

  /// The position at which the reply is truncated, or nil.
  public var cut: Cut?

  /// Whether the connection is closed after this reply. This does not add the field `Connection: close`.
  public var closes = false

  /// Whether only `parts` are sent, and status, fields and framing are ignored.
  var isRaw = false

  /// Creates a reply with a body in parts.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], parts: [Part], framing: Framing = .contentLength)
  {
    self.status = status
    self.fields = fields
    self.parts = parts
    self.framing = framing
  }

  /// Creates a reply with these bytes as its body.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], body: Data) {
    self.init(status, fields, parts: [.bytes(body)])
  }

  /// Creates a reply with the UTF-8 bytes of this text as its body.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], _ body: String = "") {
    self.init(status, fields, body: Data(body.utf8))
  }

  // MARK: Predefined replies

  /// Returns a reply that sends only these parts, then closes the connection unless `closes` is false.
  public static func raw(_ parts: [Part], closes: Bool = true) -> Reply {
    var reply = Reply(parts: parts)
    reply.isRaw = true
    reply.closes = closes
    return reply
  }

  /// Returns a reply that sends only the UTF-8 bytes of this text, then closes the connection unless `closes` is false.
  public static func raw(_ text: String, closes: Bool = true) -> Reply {
    raw([.text(text)], closes: closes)
  }

  /// A reply without any byte: the connection is closed.
  public static let nothing = Reply.raw([])

  /// Returns a reply with a chunked body that repeats `chunk` until the client disconnects or the origin stops.
  public static func endless(
    _ status: Int = 200, _ fields: [(String, String)] = [], chunk: Data = Data(repeating: 0x78, count: 16 << 10)
  ) -> Reply {
    Reply(status, fields, parts: [.endless(chunk)]).chunked(byteCount: chunk.count)
  }

  // MARK: Modified copies

  /// Returns the reply with a body in chunks of at most `byteCount` bytes, and with `trailers` at the end.
  public func chunked(byteCount: Int = 4096, trailers: [(String, String)] = []) -> Reply {
    precondition(byteCount > 0, "a chunk holds at least one byte, not \(byteCount)")
    return with { $0.framing = .chunked(byteCount: byteCount, trailers: trailers) }
  }

  /// Returns the reply in chunks of at most `byteCount` bytes, with an invalid chunk size after `count` bytes.
  ///
  /// `count` refers to the body. The connection is closed after the invalid size.
  public func brokenChunk(after count: Int, byteCount: Int = 4096) -> Reply {
    chunked(byteCount: byteCount).with { reply in
      let (before, _) = split(reply.parts, after: count)
      reply.parts = before + [.brokenChunk, .close]
    }
  }

  /// Returns the reply with `Content-Length: count`.
  ///
  /// If the body's length differs, the connection is closed after the body.
  public func declaring(contentLength count: Int) -> Reply {
    with { $0.framing = .declaredLength(count) }
  }

  /// Returns the reply with a body that ends when the connection is closed.
  public func untilClose() -> Reply {
    with { $0.framing = .untilClose }
  }

  /// Returns the reply, held before its first byte until `gate` opens. Interim responses are sent before.
  public func held(at gate: Gate) -> Reply {
    with { $0.partsBeforeHead.append(.hold(gate)) }
  }

  /// Returns the reply, held after its head and `count` bytes of its body until `gate` opens.
  public func held(at gate: Gate, afterBodyBytes count: Int) -> Reply {
    with { reply in
      let (before, after) = split(reply.parts, after: count)
      reply.parts = before + [.hold(gate)] + after
    }
  }

  /// Returns the reply with one more interim response.
  public func preceded(by status: Int, _ fields: [(String, String)] = []) -> Reply {
    with { $0.interim.append((status: status, fields: fields)) }
  }

  /// Returns the reply, truncated at `cut`.
  public func cut(_ cut: Cut) -> Reply {
    with { $0.cut = cut }
  }

  /// Returns the reply with `Connection: close`, which also closes the connection.
  public func closing() -> Reply {
    with { reply in
      reply.fields.append(("Connection", "close"))
      reply.closes = true
    }
  }

  private func with(_ change: (inout Reply) -> Void) -> Reply {
    var copy = self
    change(&copy)
    return copy
  }
}
