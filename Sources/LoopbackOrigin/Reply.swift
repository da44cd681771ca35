#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// What the origin answers to one request: a well-formed response, or one that breaks off, stalls or lies, byte for byte.
///
/// The status line, the fields and the body go out exactly as given here; the origin adds nothing but the framing field (`Content-Length` or
/// `Transfer-Encoding`), and not even that when `fields` holds one of the two. There is no `Date` unless `fields` has it.
///
/// ```swift
/// Reply(200, [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")], "hello")
/// Reply(200, body: "hello").chunked(trailers: [("ETag", "\"1\"")])
/// Reply(200, body: "hello").held(at: gate, afterBodyBytes: 2)
/// Reply(200, body: "hello").cut(.inBody(after: 2))
/// Reply.raw("HTTP/1.1 200 OK\r\nno colon here\r\n\r\n")
/// ```
public struct Reply: Sendable {
  /// A piece of what goes out.
  public enum Part: Sendable {
    /// These bytes.
    case bytes(Data)
    /// Nothing, until the gate opens, the client leaves, or the origin stops.
    case hold(Gate)
    /// These bytes again and again, as fast as the client takes them, until it leaves or the origin stops.
    case endless(Data)
    /// The connection is closed here.
    case close
    /// The connection is reset here: the client sees an error, and bytes it has not read yet may be lost.
    case reset
    /// A chunk size line that is no number. Only within a chunked body does it mean anything.
    case brokenChunk

    /// The bytes of `text` in UTF-8.
    public static func text(_ text: String) -> Part { .bytes(Data(text.utf8)) }
  }

  /// How the end of the body is announced.
  public enum Framing: Sendable {
    /// `Content-Length` with the body's length. A body that holds `endless` has none and ends with the connection.
    case contentLength
    /// `Content-Length` with this number, whatever the body's length; if they differ, the connection is closed after the body.
    case declaredLength(Int)
    /// `Transfer-Encoding: chunked`, in chunks of at most this many bytes, with these trailer fields at the end.
    case chunked(byteCount: Int, trailers: [(String, String)])
    /// Nothing: the body ends where the connection is closed.
    case untilClose
  }

  /// Where a reply breaks off: the connection is closed there.
  public enum Cut: Sendable {
    /// Before the first byte.
    case beforeHead
    /// After this many bytes of the head.
    case inHead(after: Int)
    /// After this many bytes of the body; what announces the body's end is not sent.
    case inBody(after: Int)
  }

  /// The status code.
  public var status: Int

  /// The header fields in order, as name and value.
  public var fields: [(String, String)]

  /// The body, piece by piece. It is not sent in answer to HEAD, nor with the status codes 204 and 304.
  public var parts: [Part]

  /// How the end of the body is announced.
  public var framing: Framing

  /// Interim responses (RFC 9110 section 15.2) that go out first: 100, 102 or 103, each with its fields.
  public var interim: [(status: Int, fields: [(String, String)])] = []

  /// What happens before the status line of the final response is sent, after any interim response.
  public var partsBeforeHead: [Part] = []

  /// Where the reply breaks off, or nil.
  public var cut: Cut?

  /// Whether the connection is closed after this reply. The field `Connection: close` is not added by this.
  public var closes = false

  /// Whether `parts` is all that goes out, and the status, fields and framing play no part.
  var isRaw = false

  /// A reply with the body piece by piece.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], parts: [Part], framing: Framing = .contentLength)
  {
    self.status = status
    self.fields = fields
    self.parts = parts
    self.framing = framing
  }

  /// A reply with these bytes as its body.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], body: Data) {
    self.init(status, fields, parts: [.bytes(body)])
  }

  /// A reply with this text, in UTF-8, as its body.
  public init(_ status: Int = 200, _ fields: [(String, String)] = [], _ body: String = "") {
    self.init(status, fields, body: Data(body.utf8))
  }

  // MARK: Ready ones

  /// These parts and nothing else, status line and all; then the connection is closed, unless `closes` is false.
  public static func raw(_ parts: [Part], closes: Bool = true) -> Reply {
    var reply = Reply(parts: parts)
    reply.isRaw = true
    reply.closes = closes
    return reply
  }

  /// This text, in UTF-8, and nothing else; then the connection is closed, unless `closes` is false.
  public static func raw(_ text: String, closes: Bool = true) -> Reply {
    raw([.text(text)], closes: closes)
  }

  /// No byte at all: the connection is closed.
  public static let nothing = Reply.raw([])

  /// A chunked body that repeats `chunk` until the client leaves or the origin stops.
  public static func endless(
    _ status: Int = 200, _ fields: [(String, String)] = [], chunk: Data = Data(repeating: 0x78, count: 16 << 10)
  ) -> Reply {
    Reply(status, fields, parts: [.endless(chunk)]).chunked(byteCount: chunk.count)
  }

  // MARK: Changed copies

  /// The same reply in chunks of at most `byteCount` bytes, with `trailers` at the end.
  public func chunked(byteCount: Int = 4096, trailers: [(String, String)] = []) -> Reply {
    precondition(byteCount > 0, "a chunk holds at least one byte, not \(byteCount)")
    return with { $0.framing = .chunked(byteCount: byteCount, trailers: trailers) }
  }

  /// The same reply in chunks of at most `byteCount` bytes, whose chunk after `count` bytes of the body has a size that is no number; then the
  /// connection is closed.
  public func brokenChunk(after count: Int, byteCount: Int = 4096) -> Reply {
    chunked(byteCount: byteCount).with { reply in
      let (before, _) = split(reply.parts, after: count)
      reply.parts = before + [.brokenChunk, .close]
    }
  }

  /// The same reply with `Content-Length: count`, whatever the body's length; if they differ, the connection is closed after the body.
  public func declaring(contentLength count: Int) -> Reply {
    with { $0.framing = .declaredLength(count) }
  }

  /// The same reply with nothing that announces the body's end but the closed connection.
  public func untilClose() -> Reply {
    with { $0.framing = .untilClose }
  }

  /// The same reply, held before its first byte until `gate` opens; interim responses go out before.
  public func held(at gate: Gate) -> Reply {
    with { $0.partsBeforeHead.append(.hold(gate)) }
  }

  /// The same reply, held after its head and `count` bytes of its body until `gate` opens.
  public func held(at gate: Gate, afterBodyBytes count: Int) -> Reply {
    with { reply in
      let (before, after) = split(reply.parts, after: count)
      reply.parts = before + [.hold(gate)] + after
    }
  }

  /// The same reply after one more interim response.
  public func preceded(by status: Int, _ fields: [(String, String)] = []) -> Reply {
    with { $0.interim.append((status: status, fields: fields)) }
  }

  /// The same reply, broken off at `cut`.
  public func cut(_ cut: Cut) -> Reply {
    with { $0.cut = cut }
  }

  /// The same reply with `Connection: close`, after which the connection is closed.
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
