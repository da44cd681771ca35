import FoundationEssentials
import Glibc

/// An origin that searches a fixed list of titles, and responds to QUERY (RFC 10008).
///
/// The resource ``url`` takes a query as `application/x-www-form-urlencoded` or `application/json`: the text `q`, which
/// the titles of the result contain in any case, and their maximum number `limit`. Both may be missing. The result is
/// plain text with a title per line. It has a strong `ETag`, `Date`, `Cache-Control: max-age`, and with QUERY
/// `Accept-Query`, the URL of the equivalent resource in `Location` and that of the result in `Content-Location`. Both
/// respond to GET and HEAD. The origin responds with 304 if `If-None-Match` permits it.
///
/// | Request | Status |
/// |---|---|
/// | QUERY without `Content-Type`, or with content that is inconsistent with it | 400 |
/// | QUERY with another media type, or with a content coding | 415 |
/// | QUERY or GET with a `limit` that is no number | 422 |
/// | another method | 405 |
/// | another path | 404 |
///
/// All members can be called from any thread.
public final class QueryOrigin: Sendable {
  /// The underlying origin, with its counts, waits and recorded requests.
  public let origin: LoopbackOrigin

  /// Starts to serve.
  ///
  /// - Parameters:
  ///   - recordsRequests: Whether `origin.requests` is recorded; false by default.
  ///   - clock: The time in `Date` fields, in seconds since 1970; the system's by default.
  ///   - maximumAge: The freshness lifetime of each result in seconds.
  /// - Throws: `OriginError` if the origin cannot start.
  public init(
    recordsRequests: Bool = false, clock: @escaping @Sendable () -> Int = { time(nil) }, maximumAge: Int = 60
  ) throws(OriginError) {
    origin = try LoopbackOrigin(recordsRequests: recordsRequests) { request in
      reply(to: request, now: clock(), maximumAge: maximumAge)
    }
  }

  /// The URL of the resource that takes queries.
  public var url: URL { origin.url("/search") }

  /// Returns the content of the response to a query.
  ///
  /// - Parameters:
  ///   - text: The text that the titles contain, in any case.
  ///   - limit: The maximum number of titles; nil for all.
  public static func result(of text: String, limit: Int? = nil) -> String { Query(q: text, limit: limit).result }

  /// Stops the origin, like `LoopbackOrigin.stop()`.
  public func stop() {
    origin.stop()
  }
}

private let titles = [
  "RFC 2104 HMAC: Keyed-Hashing for Message Authentication", "RFC 3986 Uniform Resource Identifier (URI)",
  "RFC 5861 HTTP Cache-Control Extensions for Stale Content", "RFC 6265 HTTP State Management Mechanism",
  "RFC 6585 Additional HTTP Status Codes", "RFC 6838 Media Type Specifications and Registration Procedures",
  "RFC 8246 HTTP Immutable Responses", "RFC 8259 The JavaScript Object Notation (JSON) Data Interchange Format",
  "RFC 8297 An HTTP Status Code for Indicating Hints", "RFC 9110 HTTP Semantics", "RFC 9111 HTTP Caching",
  "RFC 9112 HTTP/1.1", "RFC 9113 HTTP/2", "RFC 9114 HTTP/3", "RFC 9211 The Cache-Status HTTP Response Header Field",
  "RFC 9213 Targeted HTTP Cache Control", "RFC 9530 Digest Fields", "RFC 9651 Structured Field Values for HTTP",
  "RFC 9875 HTTP Cache Groups", "RFC 10008 The HTTP QUERY Method",
]

/// A search in the titles.
private struct Query: Decodable {
  var q: String?
  var limit: Int?

  var result: String {
    let text = (q ?? "").lowercased()
    let found = titles.filter { text.isEmpty || $0.lowercased().contains(text) }
    return found.prefix(limit.map { max(0, $0) } ?? titles.count).map { $0 + "\n" }.joined()
  }

  /// The query of a URL for the same search.
  var urlQuery: String {
    "?q=\(percentEncoded(q ?? ""))" + (limit.map { "&limit=\($0)" } ?? "")
  }
}

/// The reasons for which a query fails.
private enum QueryError: Error {
  /// The content is inconsistent with its media type.
  case malformed
  /// The content has the form of its media type, but a value is of no use.
  case unprocessable
}

private let mediaTypes = ["application/x-www-form-urlencoded", "application/json"]

private func reply(to request: RecordedRequest, now: Int, maximumAge: Int) -> Reply {
  guard ["/search", "/results"].contains(request.path) else { return Reply(404) }
  let acceptsQueries = request.path == "/search"
  let acceptQuery = ("Accept-Query", mediaTypes.joined(separator: ", "))
  let methods = acceptsQueries ? ["GET", "HEAD", "QUERY"] : ["GET", "HEAD"]
  guard methods.contains(request.method) else {
    return Reply(405, [("Allow", methods.joined(separator: ", "))] + (acceptsQueries ? [acceptQuery] : []))
  }
  let isQuery = request.method == "QUERY"
  let query: Query
  if isQuery {
    guard let contentType = request["Content-Type"] else { return Reply(400, [acceptQuery], "no Content-Type\n") }
    let mediaType = trimmed(contentType.prefix { $0 != ";" }).lowercased()
    guard mediaTypes.contains(mediaType) else { return Reply(415, [acceptQuery], "not a type of a query\n") }
    guard request["Content-Encoding"] == nil else { return Reply(415, [("Accept-Encoding", "identity")]) }
    do throws(QueryError) {
      query = try mediaType == "application/json" ? json(request.body) : form(request.body)
    } catch {
      return Reply(error == .malformed ? 400 : 422, [acceptQuery], "not a query\n")
    }
  } else {
    do throws(QueryError) {
      query = try form(Data((request.query ?? "").utf8))
    } catch {
      return Reply(error == .malformed ? 400 : 422)
    }
  }
  let result = query.result
  let entityTag = "\"\(String(hash(result), radix: 16))\""
  var fields = [
    ("Date", DateField.text(now)), ("ETag", entityTag), ("Cache-Control", "max-age=\(maximumAge)"),
  ]
  if isQuery {
    fields += [
      acceptQuery, ("Location", "/search" + query.urlQuery), ("Content-Location", "/results" + query.urlQuery),
    ]
  }
  let known = request["If-None-Match"]?.split(separator: ",").map { trimmed($0) } ?? []
  if known.contains(where: { $0 == "*" || $0 == entityTag || $0 == "W/" + entityTag }) { return Reply(304, fields) }
  return Reply(200, fields + [("Content-Type", "text/plain; charset=utf-8")], result)
}

private func json(_ content: Data) throws(QueryError) -> Query {
  do {
    return try JSONDecoder().decode(Query.self, from: content)
  } catch {
    if case DecodingError.dataCorrupted = error { throw .malformed }
    throw .unprocessable
  }
}

private func form(_ content: Data) throws(QueryError) -> Query {
  guard let text = String(validating: content, as: UTF8.self) else { throw .malformed }
  var query = Query()
  for parameter in text.split(separator: "&") {
    let name = parameter.prefix { $0 != "=" }
    guard let value = percentDecoded(Substring(parameter.dropFirst(name.count + 1).replacing("+", with: " "))) else {
      throw .malformed
    }
    switch name {
    case "q": query.q = value
    case "limit":
      guard let limit = Int(value) else { throw .unprocessable }
      query.limit = limit
    default: break
    }
  }
  return query
}

/// FNV-1a.
private func hash(_ text: String) -> UInt64 {
  text.utf8.reduce(0xCBF2_9CE4_8422_2325) { ($0 ^ UInt64($1)) &* 0x0000_0100_0000_01B3 }
}
