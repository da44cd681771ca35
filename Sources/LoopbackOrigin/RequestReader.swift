import FoundationEssentials

/// Reads successive requests from a connection.
struct RequestReader {
  /// A request before it gets its number.
  struct Message {
    var method = ""
    var target = ""
    var version = ""
    var headerLines: [String] = []
    var body = Data()
  }

  /// The maximum size of a head in bytes, enough for a URL of 100,000 characters and some very long fields.
  static let maximumHeadByteCount = 4 << 20

  /// The maximum size of a body in bytes.
  static let maximumBodyByteCount = 1 << 30

  private let socket: StreamSocket
  private var buffer = [UInt8](repeating: 0, count: 64 << 10)
  private var start = 0
  private var end = 0

  init(socket: StreamSocket) {
    self.socket = socket
  }

  /// Reads the next request; nil if the client closed the connection between two requests.
  mutating func next() throws(ConnectionEnd) -> Message? {
    var message = Message()
    // The number of bytes that the rest of the head may have.
    var budget = Self.maximumHeadByteCount
    guard let requestLine = try firstLine(&budget) else { return nil }
    let parts = requestLine.split(separator: " ", omittingEmptySubsequences: false).map(String.init)
    guard parts.count == 3, !parts[0].isEmpty, !parts[1].isEmpty, parts[2].hasPrefix("HTTP/1.") else {
      throw .malformed("not a request line")
    }
    (message.method, message.target, message.version) = (parts[0], parts[1], parts[2])
    message.headerLines = try headerLines(&budget)
    try readBody(of: &message)
    return message
  }

  // MARK: Body

  private mutating func readBody(of message: inout Message) throws(ConnectionEnd) {
    var length: Int?
    var isChunked = false
    for line in message.headerLines {
      let name = line.prefix { $0 != ":" }
      guard name.count < line.count, !name.isEmpty else { throw .malformed("a header line without a name") }
      let value = trimmed(line.dropFirst(name.count + 1)).lowercased()
      switch name.lowercased() {
      case "content-length":
        guard let count = Int(value), count >= 0 else { throw .malformed("not a Content-Length") }
        length = count
      case "transfer-encoding":
        isChunked = value.hasSuffix("chunked")
      case "expect" where value == "100-continue":
        // The client waits for this before it sends the body.
        try socket.write(Data("HTTP/1.1 100 Continue\r\n\r\n".utf8))
      default:
        break
      }
    }
    if isChunked {
      message.body = try chunkedBody()
    } else if let length {
      guard length <= Self.maximumBodyByteCount else { throw .malformed("the body is too large") }
      try take(length, into: &message.body)
    }
  }

  private mutating func chunkedBody() throws(ConnectionEnd) -> Data {
    var body = Data()
    while true {
      var budget = 4096
      let digits = try line(&budget).prefix { $0 != ";" }
      guard let count = Int(trimmed(digits), radix: 16), count >= 0,
        count <= Self.maximumBodyByteCount - body.count
      else { throw .malformed("not a chunk size") }
      if count == 0 {
        budget = Self.maximumHeadByteCount
        _ = try headerLines(&budget)  // trailers
        return body
      }
      try take(count, into: &body)
      guard try line(&budget).isEmpty else { throw .malformed("a chunk without its line end") }
    }
  }

  // MARK: Bytes

  /// Reads the first line of a request, after any empty lines (RFC 9112 section 2.2); nil at the end of the data.
  private mutating func firstLine(_ budget: inout Int) throws(ConnectionEnd) -> String? {
    while true {
      if start == end {
        guard try fill() else { return nil }
      }
      let text = try line(&budget)
      if !text.isEmpty { return text }
    }
  }

  private mutating func headerLines(_ budget: inout Int) throws(ConnectionEnd) -> [String] {
    var lines: [String] = []
    while true {
      let text = try line(&budget)
      if text.isEmpty { return lines }
      lines.append(text)
    }
  }

  private mutating func line(_ budget: inout Int) throws(ConnectionEnd) -> String {
    var bytes: [UInt8] = []
    while true {
      if start == end {
        guard try fill() else { throw .clientLeft }
      }
      let waiting = buffer[start..<end]
      let lineEnd = waiting.firstIndex(of: UInt8(ascii: "\n"))
      let stop = lineEnd.map { $0 + 1 } ?? end
      budget -= stop - start
      guard budget >= 0 else { throw .malformed("the head is too long") }
      bytes += buffer[start..<(lineEnd ?? end)]
      start = stop
      guard lineEnd != nil else { continue }
      if bytes.last == UInt8(ascii: "\r") { bytes.removeLast() }
      return String(decoding: bytes, as: UTF8.self)
    }
  }

  private mutating func take(_ count: Int, into data: inout Data) throws(ConnectionEnd) {
    var missing = count
    while missing > 0 {
      if start == end {
        guard try fill() else { throw .clientLeft }
      }
      let taken = min(missing, end - start)
      data.append(contentsOf: buffer[start..<start + taken])
      start += taken
      missing -= taken
    }
  }

  /// Reads into the empty buffer; false at the end of the client's data.
  private mutating func fill() throws(ConnectionEnd) -> Bool {
    start = 0
    end = 0
    end = try socket.read(into: &buffer)
    return end > 0
  }
}
