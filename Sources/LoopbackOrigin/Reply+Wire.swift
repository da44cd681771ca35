import FoundationEssentials

/// The actions that send a reply on a connection.
struct WireScript {
  var parts: [Reply.Part] = []
  /// Whether the connection is closed after all parts.
  var closes = false
}

extension Reply {
  /// Returns the actions for the reply to a request with this method.
  func wireScript(for method: String) -> WireScript {
    if isRaw { return WireScript(parts: parts, closes: closes) }
    var script = WireScript(closes: closes)
    for response in interim {
      script.parts.append(.bytes(Self.head(response.status, response.fields)))
    }
    script.parts += partsBeforeHead
    let isBodiless = status == 204 || status == 304 || status < 200
    let framing = isBodiless ? nil : effectiveFraming
    let head = Self.head(status, fields + (framing.map(framingFields) ?? []))
    let body = isBodiless || method == "HEAD" ? WireScript() : wireBody(framing ?? .contentLength)
    switch cut {
    case nil:
      script.parts.append(.bytes(head))
      script.parts += body.parts
      script.closes = script.closes || body.closes
    case .beforeHead:
      script.closes = true
    case .inHead(let count):
      script.parts.append(.bytes(head.prefix(count)))
      script.closes = true
    case .inBody:
      script.parts.append(.bytes(head))
      script.parts += body.parts
      script.closes = true
    }
    return script
  }

  /// The length of the body in bytes; nil if a part is endless.
  private var bodyByteCount: Int? {
    var count = 0
    for part in parts {
      switch part {
      case .bytes(let bytes): count += bytes.count
      case .hold: break
      // The declared length includes the bytes after this part, which are not sent.
      case .close, .reset, .brokenChunk: break
      case .endless: return nil
      }
    }
    return count
  }

  private var effectiveFraming: Framing {
    if case .contentLength = framing, bodyByteCount == nil { return .untilClose }
    return framing
  }

  private func framingFields(_ framing: Framing) -> [(String, String)] {
    let given = fields.contains { ["content-length", "transfer-encoding"].contains($0.0.lowercased()) }
    if given { return [] }
    return switch framing {
    case .contentLength: [("Content-Length", String(bodyByteCount ?? 0))]
    case .declaredLength(let count): [("Content-Length", String(count))]
    case .chunked: [("Transfer-Encoding", "chunked")]
    case .untilClose: []
    }
  }

  private func wireBody(_ framing: Framing) -> WireScript {
    var content = parts
    var isWhole = true
    if case .inBody(let count) = cut {
      (content, _) = split(parts, after: count)
      isWhole = false
    }
    switch framing {
    case .contentLength:
      return WireScript(parts: content)
    case .declaredLength(let count):
      return WireScript(parts: content, closes: count != bodyByteCount)
    case .untilClose:
      return WireScript(parts: content, closes: true)
    case .chunked(let byteCount, let trailers):
      var script = WireScript(parts: content.flatMap { Self.chunks($0, byteCount) })
      if isWhole {
        let lines = trailers.map { "\($0.0): \($0.1)\r\n" }.joined()
        script.parts.append(.text("0\r\n\(lines)\r\n"))
      }
      return script
    }
  }

  private static func chunks(_ part: Part, _ byteCount: Int) -> [Part] {
    switch part {
    case .bytes(let bytes):
      var coded = Data()
      var rest = bytes
      while !rest.isEmpty {
        coded += chunk(rest.prefix(byteCount))
        rest = rest.dropFirst(byteCount)
      }
      return [.bytes(coded)]
    case .endless(let bytes):
      return [.endless(chunk(bytes))]
    case .brokenChunk:
      return [.text("zz\r\n")]
    case .hold, .close, .reset:
      return [part]
    }
  }

  private static func chunk(_ bytes: Data) -> Data {
    Data((String(bytes.count, radix: 16) + "\r\n").utf8) + bytes + Data("\r\n".utf8)
  }

  private static func head(_ status: Int, _ fields: [(String, String)]) -> Data {
    let lines = fields.map { "\($0.0): \($0.1)\r\n" }.joined()
    return Data("HTTP/1.1 \(status) \(reasonPhrases[status] ?? "Other")\r\n\(lines)\r\n".utf8)
  }
}

/// Splits `parts` after `count` bytes. A hold at that position stays in the first half.
func split(_ parts: [Reply.Part], after count: Int) -> (before: [Reply.Part], after: [Reply.Part]) {
  var before: [Reply.Part] = []
  var left = count
  for (index, part) in parts.enumerated() {
    switch part {
    case .bytes(let bytes) where bytes.count > left:
      before.append(.bytes(bytes.prefix(left)))
      return (before, [.bytes(bytes.dropFirst(left))] + parts[(index + 1)...])
    case .bytes(let bytes):
      left -= bytes.count
      before.append(part)
    case .endless(let bytes):
      before.append(.bytes(repeated(bytes, count: left)))
      return (before, Array(parts[index...]))
    case .hold, .close, .reset, .brokenChunk:
      before.append(part)
    }
  }
  return (before, [])
}

private func repeated(_ bytes: Data, count: Int) -> Data {
  var result = Data()
  while result.count < count, !bytes.isEmpty {
    result += bytes.prefix(count - result.count)
  }
  return result
}

private let reasonPhrases: [Int: String] = [
  100: "Continue", 102: "Processing", 103: "Early Hints", 200: "OK", 201: "Created", 202: "Accepted",
  203: "Non-Authoritative Information", 204: "No Content", 206: "Partial Content", 300: "Multiple Choices",
  301: "Moved Permanently", 302: "Found", 303: "See Other", 304: "Not Modified", 307: "Temporary Redirect",
  308: "Permanent Redirect", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
  405: "Method Not Allowed", 410: "Gone", 412: "Precondition Failed", 413: "Content Too Large",
  415: "Unsupported Media Type", 416: "Range Not Satisfiable", 422: "Unprocessable Content",
  429: "Too Many Requests", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
  503: "Service Unavailable", 504: "Gateway Timeout",
]
