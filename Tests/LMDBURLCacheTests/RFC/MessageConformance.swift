import LoopbackOrigin

/// Framing, truncation, interim responses, and the stored fields.
enum MessageConformance {
  private static let kept = control("max-age=3600")

  private static func shaped(
    _ id: String, _ section: String, _ kind: ConformanceCase.Kind, rows: [Int], _ reply: FieldLines = kept,
    reused: Bool = true, shows: [(String, String?)] = [], _ shape: @escaping @Sendable (Reply) -> Reply
  ) -> ConformanceCase {
    ConformanceCase(
      id, section, kind, rows: rows, .origin(reply) { $0.shape = shape },
      reused ? .stored(after: 1, shows: shows) : .origin(after: 1))
  }

  private static func broken(
    _ id: String, rows: [Int] = [15, 16], _ reply: FieldLines = kept, _ shape: @escaping @Sendable (Reply) -> Reply
  ) -> ConformanceCase {
    ConformanceCase(
      id, "9111 3.3", .required, rows: rows,
      .origin(reply) { step in
        step.shape = shape
        step.expected = .failure
      }, .origin(after: 1))
  }

  static let framing: [ConformanceCase] = [
    shaped("chunked", "9112 7.1", .recommended, rows: [9]) { $0.chunked(byteCount: 2) },
    ConformanceCase(
      "ends-with-the-connection-unproven", "9112 8", .optional, rows: [15], settings: .wired,
      .origin(kept) { $0.shape = { $0.untilClose() } }, .origin(after: 1)),
    broken("broken-body") { $0.cut(.inBody(after: 3)) },
    broken("broken-head") { $0.cut(.inHead(after: 5)) },
    broken("broken-chunks") { $0.brokenChunk(after: 3, byteCount: 2) },
    broken("chunks-end-early") { $0.chunked(byteCount: 2).cut(.inBody(after: 3)) },
    broken("length-too-large") { $0.declaring(contentLength: 60) },
    ConformanceCase(
      "broken-body-replaced-by-the-older", "5861 4", .optional, rows: [15, 16],
      settings: .init(isPure: false),
      .origin(control("max-age=60, stale-if-error=600")),
      .origin(kept, after: 61) { step in
        step.shape = { $0.cut(.inBody(after: 3)) }
        step.bodyOf = 0
      },
      .origin(status: 503, after: 1) { $0.bodyOf = 0 }),
    // Over the other ways the caller has received no part of the body.
    ConformanceCase(
      "broken-body-keeps-the-older", "9111 3.3", .required, rows: [15, 16],
      settings: .init(isPure: false, excluded: [.session, .data]),
      .origin(control("max-age=60, stale-if-error=600")),
      .origin(kept, after: 61) { step in
        step.shape = { $0.cut(.inBody(after: 3)) }
        step.expected = .failure
      },
      .origin(status: 503, after: 1) { $0.bodyOf = 0 }),
    ConformanceCase(
      "length-too-small", "9112 6.3", .optional, rows: [15], settings: .wired,
      .origin(kept, body: "0123456789") { step in
        step.shape = { $0.declaring(contentLength: 4) }
        step.expectedBody = "0123"
      }, .stored(after: 1, body: "0123")),
    ConformanceCase(
      "empty-body", "9111 3", .recommended, rows: [9], .origin(kept, body: ""), .stored(after: 1, body: "")),
  ]

  static let interim: [ConformanceCase] = [102, 103].flatMap { status -> [ConformanceCase] in
    [
      shaped("interim-\(status)-skipped", "9111 3", .required, rows: [2]) {
        $0.preceded(by: status, [("Link", "</a>")])
      },
      shaped("interim-\(status)-not-stored", "9111 3", .required, rows: [2], [], reused: false) {
        $0.preceded(by: status, [("Cache-Control", "max-age=3600"), ("X-Interim", "1")])
      },
    ]
  }

  static let severalInterim: [ConformanceCase] = [
    shaped("interim-several-skipped", "9111 3", .required, rows: [2]) {
      $0.preceded(by: 103, [("Link", "</a>")]).preceded(by: 102, []).preceded(by: 103, [("Cache-Control", "no-store")])
    }
  ]

  private static let storedNames = [
    "X-Test", "Test-Header", "Content-Foo", "X-Content-Foo", "Content-Language", "Content-Location", "Content-Range",
    "Content-Security-Policy", "Content-Type", "Content-Disposition", "Content-MD5", "Clear-Site-Data", "ETag",
    "Last-Modified", "Link",
    "Public-Key-Pins", "Strict-Transport-Security2", "Set-Cookie", "Set-Cookie2", "Server", "Strict-Transport-Security",
    "Via", "Warning",
    "X-Frame-Options", "X-XSS-Protection", "WWW-Authenticate", "Access-Control-Allow-Origin", "Allow", "Age-X",
    "Alt-Svc",
    "Retry-After", "P3P", "Accept-Ranges", "x_underscore", "x.dot", "X-Empty",
  ]

  private static func example(of name: String) -> String {
    switch name {
    case "X-Empty": ""
    case "ETag": "\"a\""
    case "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"
    case "Connection": "x-y"
    default: "value"
    }
  }

  static let storedFields: [ConformanceCase] = storedNames.map { name -> ConformanceCase in
    let value = example(of: name)
    return ConformanceCase(
      "field-stored-\(name)", "9111 3.1", .required, rows: [9], .origin(kept + [(name, value)], shows: [(name, value)]),
      .stored(after: 1, shows: [(name, value)]))
  }

  private static let hopByHop = [
    "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info",
    "Proxy-Authorization", "TE", "Upgrade", "Trailer",
  ]

  static let unstoredFields: [ConformanceCase] = hopByHop.map { name -> ConformanceCase in
    ConformanceCase(
      "field-not-stored-\(name)", "9111 3.1", .required, rows: name.hasPrefix("Proxy-Auth") ? [11] : [10],
      .origin(kept + [(name, example(of: name))]), .stored(after: 1, shows: [(name, nil)]))
  }

  static let fields: [ConformanceCase] = [
    ConformanceCase(
      "connection-names-fields", "9111 3.1", .required, rows: [10],
      .origin(kept + [("Connection", "X-A, x-b"), ("X-A", "1"), ("X-B", "2"), ("X-C", "3")]),
      .stored(after: 1, shows: [("X-A", nil), ("X-B", nil), ("X-C", "3")])),
    ConformanceCase(
      "connection-does-not-hide-vary", "9111 4.1", .required, rows: [29],
      .origin(control("max-age=3600", [("Connection", "Vary"), ("Vary", "Foo")]), [("Foo", "1")]),
      .origin(after: 1, [("Foo", "2")])),
    ConformanceCase(
      "value-with-many-lines", "9110 5.3", .required, rows: [9], .origin(kept + [("X-A", "1"), ("X-A", "2")]),
      .stored(after: 1, shows: [("X-A", "1, 2")])),
    ConformanceCase(
      "long-value", "9111 3.1", .required, rows: [9], .origin(kept + [("X-A", String(repeating: "a", count: 8000))]),
      .stored(after: 1, shows: [("X-A", String(repeating: "a", count: 8000))])),
    ConformanceCase(
      "nul-in-a-value", "9110 5.5", .required, rows: [91], settings: .wired,
      .origin(kept) { step in
        step.shape = { _ in
          .raw("HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nX-A: 1\u{0}2\r\nContent-Length: 6\r\n\r\nbody 0")
        }
        step.expected = .failure
      }, .origin(after: 1)),
  ]

  private static let madeUpContentEncoding = kept + [("Content-Encoding", "made-up")]

  /// Codings that no recipient knows.
  static let codings: [ConformanceCase] = [
    ConformanceCase(
      "content-encoding-unknown", "9110 8.4", .recommended, rows: [9], settings: .wired,
      .origin(madeUpContentEncoding, shows: [("Content-Encoding", "made-up")]),
      .stored(after: 1, shows: [("Content-Encoding", "made-up")])),
    ConformanceCase(
      "transfer-encoding-unknown", "9112 6.1", .required, rows: [15], settings: .wired,
      .origin(kept) { step in
        step.shape = { _ in
          .raw("HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nTransfer-Encoding: made-up\r\n\r\nbody 0")
        }
        step.expected = .failure
      }, .origin(after: 1)),
  ]

  static let redirects: [ConformanceCase] = [
    ConformanceCase(
      "redirect-without-location", "9110 15.4", .optional, rows: [7], settings: .wired,
      .origin(kept, status: 301, body: "gone"), .stored(after: 1)),
    ConformanceCase(
      "redirect-cached-under-its-own-url", "9111 2", .recommended, rows: [21], settings: .wired,
      .origin(kept, suffix: "/to", body: "target"),
      .origin(control("max-age=3600", [("Location", "redirect-cached-under-its-own-url/to")]), status: 301, after: 1) {
        step in
        step.expectedBody = "target"
        step.expectedStatus = 200
      }, .stored(after: 1, status: 200, body: "target")),
    ConformanceCase(
      "temporary-redirect-not-cached", "9110 15.4.3", .required, rows: [7, 21], settings: .wired,
      .origin(kept, suffix: "/to", body: "target"),
      .origin([("Location", "temporary-redirect-not-cached/to")], status: 302) { step in
        step.expectedBody = "target"
        step.expectedStatus = 200
      },
      .origin([("Location", "temporary-redirect-not-cached/to")], status: 302, after: 1) { step in
        step.expectedBody = "target"
        step.expectedStatus = 200
      }),
  ]

  static let all: [ConformanceCase] = [
    framing, interim, severalInterim, storedFields, unstoredFields, fields, codings, redirects,
  ].flatMap { $0 }
}
