import FoundationEssentials
import Glibc

/// An origin that serves the regular files in a folder, with the fields that a cache needs.
///
/// The fields are a strong `ETag`, `Last-Modified`, `Date` and `Cache-Control: max-age`. The origin handles GET and
/// HEAD, and responds with 405 to other methods. It responds with 304 if `If-None-Match`, or else `If-Modified-Since`,
/// permits it (RFC 9110 section 13). It responds with 404 to a path that is not a regular file in the folder. Symbolic
/// links are followed, but not out of the folder. Files are read for each request, so a change is visible at once.
///
/// All members can be called from any thread.
public final class FileOrigin: Sendable {
  /// The underlying origin, with its counts, waits and recorded requests.
  public let origin: LoopbackOrigin

  /// The folder, without symbolic links.
  private let root: String

  /// Starts to serve a folder.
  ///
  /// - Parameters:
  ///   - folder: The folder's path.
  ///   - recordsRequests: Whether `origin.requests` is recorded; false by default, because a demonstration makes many
  ///     requests.
  ///   - clock: The time in `Date` fields, in seconds since 1970; the system's by default. If a cache uses another
  ///     clock, use the same clock here.
  ///   - maximumAge: Returns how many seconds a response stays fresh, for a path relative to the folder.
  /// - Throws: `OriginError` if the folder does not exist, or the origin cannot start.
  public init(
    folder: String, recordsRequests: Bool = false, clock: @escaping @Sendable () -> Int = { time(nil) },
    maximumAge: @escaping @Sendable (_ path: String) -> Int
  ) throws(OriginError) {
    guard let root = resolved(folder) else { throw OriginError(function: "realpath", number: errno) }
    self.root = root
    origin = try LoopbackOrigin(recordsRequests: recordsRequests) { request in
      reply(to: request, root: root, now: clock(), maximumAge: maximumAge)
    }
  }

  /// Starts to serve a folder whose files all stay fresh for `maximumAge` seconds.
  ///
  /// - Throws: `OriginError`, like the other initializer.
  public convenience init(folder: String, recordsRequests: Bool = false, maximumAge: Int = 60) throws(OriginError) {
    try self.init(folder: folder, recordsRequests: recordsRequests) { _ in maximumAge }
  }

  /// Returns the URL of a file.
  ///
  /// - Parameter path: The path relative to the folder, not percent-encoded.
  public func url(forFile path: String) -> URL {
    origin.url("/" + percentEncoded(path))
  }

  /// Returns the paths of the files with a size in `byteCounts`, relative to the folder and sorted by their bytes.
  ///
  /// Skips symbolic links. Scans the whole folder.
  public func files(byteCounts: ClosedRange<Int> = 0...Int.max) throws -> [String] {
    try FileManager.default.subpathsOfDirectory(atPath: root).filter { path in
      var status = stat()
      let absolute = root + "/" + path
      guard lstat(absolute, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return false }
      return byteCounts.contains(Int(status.st_size)) && access(absolute, R_OK) == 0
    }.sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
  }

  /// Stops the origin, like `LoopbackOrigin.stop()`.
  public func stop() {
    origin.stop()
  }
}

private func reply(
  to request: RecordedRequest, root: String, now: Int, maximumAge: (String) -> Int
) -> Reply {
  guard ["GET", "HEAD"].contains(request.method) else { return Reply(405, [("Allow", "GET, HEAD")]) }
  guard let path = relativePath(request.path), let absolute = resolved(root + "/" + path),
    absolute.hasPrefix(root == "/" ? root : root + "/"), let content = FileContent(path: absolute)
  else { return Reply(404, [("Date", DateField.text(now))], "no such file\n") }
  let entityTag = content.entityTag
  var fields = [
    ("Date", DateField.text(now)),
    ("ETag", entityTag),
    ("Last-Modified", DateField.text(content.modified)),
    ("Cache-Control", "max-age=\(maximumAge(path))"),
  ]
  if isUnchanged(request, entityTag, content.modified) { return Reply(304, fields) }
  fields.append(("Content-Type", contentType(path)))
  return Reply(200, fields, body: content.bytes)
}

/// Whether the client's conditions show that it has this version.
private func isUnchanged(_ request: RecordedRequest, _ entityTag: String, _ modified: Int) -> Bool {
  if let known = request["If-None-Match"] {
    let tags = known.split(separator: ",").map { trimmed($0) }
    return tags.contains { $0 == "*" || $0 == entityTag || $0 == "W/" + entityTag }
  }
  guard let known = request["If-Modified-Since"], let date = DateField.seconds(known) else { return false }
  return modified <= date
}

/// Returns the file path of a request's path, relative to the folder; nil if no file can have it.
private func relativePath(_ path: String) -> String? {
  guard path.hasPrefix("/"), let decoded = percentDecoded(path.dropFirst()), !decoded.contains("\0")
  else {
    return nil
  }
  let names = decoded.split(separator: "/", omittingEmptySubsequences: false)
  return names.contains { ["", ".", ".."].contains($0) } ? nil : decoded
}

/// Returns the absolute path without symbolic links; nil (with `errno`) if there is no such file.
private func resolved(_ path: String) -> String? {
  guard let resolved = realpath(path, nil) else { return nil }
  defer { free(resolved) }
  return String(cString: resolved)
}

/// Decodes percent-encoding (RFC 3986 section 2.1); nil if it is invalid or not UTF-8.
func percentDecoded(_ text: Substring) -> String? {
  var bytes: [UInt8] = []
  var rest = Array(text.utf8)[...]
  while let byte = rest.popFirst() {
    guard byte == UInt8(ascii: "%") else {
      bytes.append(byte)
      continue
    }
    guard rest.count >= 2, rest.prefix(2).allSatisfy({ UnicodeScalar($0).properties.isASCIIHexDigit }),
      let decoded = UInt8(String(decoding: rest.prefix(2), as: UTF8.self), radix: 16)
    else { return nil }
    bytes.append(decoded)
    rest = rest.dropFirst(2)
  }
  return String(validating: bytes, as: UTF8.self)
}

/// Percent-encodes all characters except unreserved ones and slashes (RFC 3986 section 2.3).
func percentEncoded(_ path: String) -> String {
  let kept = Set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/".utf8)
  return path.utf8.map { byte in
    if kept.contains(byte) { return String(UnicodeScalar(byte)) }
    let digits = String(byte, radix: 16, uppercase: true)
    return digits.count == 1 ? "%0\(digits)" : "%\(digits)"
  }.joined()
}

private func contentType(_ path: String) -> String {
  let name = path.split(separator: "/").last ?? ""
  let suffix = name.split(separator: ".", omittingEmptySubsequences: false).dropFirst().last?.lowercased()
  return suffix.flatMap { contentTypes[$0] } ?? "application/octet-stream"
}

private let contentTypes = [
  "css": "text/css", "gif": "image/gif", "gz": "application/gzip", "htm": "text/html", "html": "text/html",
  "jpeg": "image/jpeg", "jpg": "image/jpeg", "js": "text/javascript", "json": "application/json",
  "md": "text/markdown", "pdf": "application/pdf", "png": "image/png", "svg": "image/svg+xml", "txt": "text/plain",
  "xml": "application/xml",
]
