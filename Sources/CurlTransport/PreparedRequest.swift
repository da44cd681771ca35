import CCurl
import CachingClient
import FoundationEssentials
import Glibc
import HTTPCaching

/// A validated request in libcurl's format, created on the caller's thread to save time on the I/O thread.
///
/// `@unchecked Sendable`: nothing changes after `init`, and only the I/O thread passes the memory to libcurl.
final class PreparedRequest: @unchecked Sendable {
  /// The method; never empty.
  let method: String
  /// The scheme, host and port.
  let origin: String
  var usesTLS: Bool { origin.hasPrefix("https:") }
  /// The parsed URL, a `CURLU`.
  let url: OpaquePointer
  /// The path and the empty query of a URL with an empty query, which some versions of libcurl would leave out.
  let targetWithEmptyQuery: String?
  let fields: UnsafeMutablePointer<curl_slist>?
  /// The content, which may be empty; nil if the request has none.
  let content: UnsafeMutableRawBufferPointer?
  /// Whether the request may be sent twice (RFC 9110 section 9.2.2; for QUERY, RFC 10008 section 2).
  let isIdempotent: Bool

  /// Validates and converts a request.
  ///
  /// - Throws: `CurlTransportError` if the URL, the method, a field or the content cannot be sent unchanged.
  init(_ request: OutgoingRequest, decodesContent: Bool) throws(CurlTransportError) {
    let head = request.head
    method = head.method
    let address = head.url.absoluteString
    try Self.validate(head, address)
    switch request.body {
    // These methods require a Content-Length even without content (RFC 9110 section 8.6).
    case nil where ["POST", "PUT", "PATCH", "QUERY"].contains(method): content = Self.copy(Data())
    case nil: content = nil
    case .bytes(let bytes)?:
      guard method != "HEAD" else { throw CurlTransportError(.invalidRequest, "a HEAD request must not have content") }
      content = Self.copy(bytes)
    case .inContext?: throw CurlTransportError(.invalidRequest, "the content is not given as bytes")
    }
    targetWithEmptyQuery = Self.targetWithEmptyQuery(in: address)
    isIdempotent = ["GET", "HEAD", "QUERY", "PUT", "DELETE", "OPTIONS", "TRACE"].contains(method)
    fields = Self.lines(of: head, hasContent: content != nil, decodesContent: decodesContent)
    do {
      (url, origin) = try Self.parse(head.url, address)
    } catch {
      // A class whose initializer throws is not deinitialized.
      curl_slist_free_all(fields)
      content?.deallocate()
      throw error
    }
  }

  deinit {
    curl_url_cleanup(url)
    curl_slist_free_all(fields)
    content?.deallocate()
  }

  private static func copy(_ bytes: Data) -> UnsafeMutableRawBufferPointer {
    let copy = UnsafeMutableRawBufferPointer.allocate(byteCount: max(1, bytes.count), alignment: 1)
    _ = bytes.copyBytes(to: copy)
    return UnsafeMutableRawBufferPointer(rebasing: copy[..<bytes.count])
  }

  // MARK: Head

  /// The maximum size of the URL and the fields in bytes. libcurl sends at most 1 MiB.
  private static let maximumHeadByteCount = 1_000_000

  private static func validate(_ head: RequestHead, _ address: String) throws(CurlTransportError) {
    guard !head.method.isEmpty, head.method.utf8.allSatisfy(\.isTokenByte), head.method != "CONNECT" else {
      throw CurlTransportError(.invalidRequest, "the method cannot be sent")
    }
    // libcurl would send the text after a line end as another field.
    guard head.fields.isWellFormed else {
      throw CurlTransportError(.invalidRequest, "a field's name is not a token, or its value has a line end or a NUL")
    }
    var byteCount = address.utf8.count
    for (name, value) in head.fields { byteCount += name.utf8.count + value.utf8.count + 4 }
    guard byteCount <= maximumHeadByteCount else {
      throw CurlTransportError(.invalidRequest, "the URL and the fields have more than 1,000,000 bytes")
    }
  }

  /// Returns the field lines for libcurl.
  ///
  /// For an empty value, `Name:` would remove a field of libcurl; `Name;` sends it.
  private static func lines(
    of head: RequestHead, hasContent: Bool, decodesContent: Bool
  ) -> UnsafeMutablePointer<curl_slist>? {
    var list: UnsafeMutablePointer<curl_slist>?
    func append(_ line: String) {
      guard !FieldText.isASCII(line) else { return list = curl_slist_append(list, line) }
      // The bytes of a stored field, which need not be UTF-8. A line has no NUL.
      list = curl_slist_append(list, FieldText.bytes(of: line).map { CChar(bitPattern: $0) } + [0])
    }
    var given: Set<GivenField> = []
    for (name, value) in head.fields {
      if let field = GivenField(name) {
        given.insert(field)
        // libcurl creates these fields from the content. With Expect it would wait for "100 Continue", which some
        // servers never send.
        if field == .framing { continue }
      }
      append(value.utf8.allSatisfy { $0 == 0x20 || $0 == 0x09 } ? "\(name);" : "\(name): \(value)")
    }
    if !given.contains(.accept) { append("Accept:") }
    if !given.contains(.userAgent), let userAgent = head.defaultUserAgent { append("User-Agent: \(userAgent)") }
    if !given.contains(.acceptLanguage), let language = head.defaultLanguage { append("Accept-Language: \(language)") }
    if decodesContent, !given.contains(.acceptEncoding), !given.contains(.range) {
      append("Accept-Encoding: gzip, deflate")
    }
    if hasContent {
      append("Expect:")
      if !given.contains(.contentType) { append("Content-Type:") }
    }
    return list
  }

  /// The fields for which libcurl or this transport has a default.
  private enum GivenField {
    case accept, acceptEncoding, acceptLanguage, contentType, range, userAgent, framing

    init?(_ name: String) {
      switch name.lowercased() {
      case "accept": self = .accept
      case "accept-encoding": self = .acceptEncoding
      case "accept-language": self = .acceptLanguage
      case "content-type": self = .contentType
      case "range": self = .range
      case "user-agent": self = .userAgent
      case "content-length", "transfer-encoding", "expect": self = .framing
      default: return nil
      }
    }
  }

  // MARK: URL

  private static func targetWithEmptyQuery(in address: String) -> String? {
    let bytes = address.utf8
    // Most URLs have no query. Contiguous bytes are searched several times faster.
    guard bytes.withContiguousStorageIfAvailable({ $0.contains(UInt8(ascii: "?")) }) != false else { return nil }
    guard let mark = bytes.firstIndex(of: UInt8(ascii: "?")) else { return nil }
    let (next, beforeMark) = (bytes.index(after: mark), bytes[..<mark])
    // A question mark in a fragment begins no query.
    guard next == bytes.endIndex || bytes[next] == UInt8(ascii: "#"), !beforeMark.contains(UInt8(ascii: "#")),
      let authority = address.firstRange(of: "://")?.upperBound
    else { return nil }
    return "/" + address[authority..<mark].drop { $0 != "/" }.dropFirst() + "?"
  }

  private static func parse(
    _ url: URL, _ address: String
  ) throws(CurlTransportError) -> (OpaquePointer, origin: String) {
    guard let scheme = url.scheme?.lowercased(), scheme == "http" || scheme == "https" else {
      throw CurlTransportError(.unsupportedScheme, "the URL is neither http nor https")
    }
    guard url.host(percentEncoded: true)?.isEmpty == false else {
      throw CurlTransportError(.invalidURL, "the URL has no host")
    }
    guard let host = url.canonicalHost else { throw CurlTransportError(.invalidURL, "the URL's host is not valid") }
    guard url.user == nil, url.password == nil else {
      throw CurlTransportError(.invalidURL, "the URL has user information")
    }
    guard let parsed = curl_url() else { throw CurlTransportError(.unavailable, "there is no memory for a URL") }
    let result = curl_url_set(parsed, CURLUPART_URL, address, CUnsignedInt(CURLU_PATH_AS_IS))
    // Both parsers must agree on the origin: a response stored under one origin must not come from another.
    guard result == CURLUE_OK, setHost(host, of: parsed),
      part(CURLUPART_PORT, of: parsed).map({ Int($0) }) ?? nil == url.port, part(CURLUPART_USER, of: parsed) == nil
    else {
      curl_url_cleanup(parsed)
      throw CurlTransportError(.invalidURL, "the URL cannot be parsed, or is ambiguous")
    }
    return (parsed, "\(scheme)://\(host):\(url.port ?? (scheme == "https" ? 443 : 80))")
  }

  /// Makes libcurl use the host of the cache key. Returns false if libcurl found another host in the URL.
  ///
  /// libcurl would encode a name in another script itself, by rules that differ for a few names.
  private static func setHost(_ host: String, of url: OpaquePointer) -> Bool {
    guard let parsed = part(CURLUPART_HOST, of: url), HostName.canonical(parsed) == host else { return false }
    return parsed.lowercased() == host || curl_url_set(url, CURLUPART_HOST, host, 0) == CURLUE_OK
  }

  private static func part(_ part: CURLUPart, of url: OpaquePointer) -> String? {
    var text: UnsafeMutablePointer<CChar>?
    guard curl_url_get(url, part, &text, 0) == CURLUE_OK, let text else { return nil }
    defer { curl_free(text) }
    return String(cString: text)
  }
}
