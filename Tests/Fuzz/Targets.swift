import FoundationEssentials
import HTTPCaching

/// A parser or a store under test. A violated invariant traps, which libFuzzer reports.
struct FuzzTarget: Sendable {
  let name: String
  let run: @Sendable (UnsafeRawBufferPointer) -> Void

  static let all: [FuzzTarget] = [
    FuzzTarget(name: "cache-control", run: cacheControl), FuzzTarget(name: "dates", run: dates),
    FuzzTarget(name: "vary", run: vary), FuzzTarget(name: "range", run: range),
    FuzzTarget(name: "structured-fields", run: structuredFields), FuzzTarget(name: "records", run: records),
    FuzzTarget(name: "store-contract", run: storeContract),
  ]
}

private let now = Date(timeIntervalSince1970: 1_800_000_000)
private let url = URL(string: "https://example.com/a")!

/// Splits the input into lines, at most `count`.
func parts(_ bytes: UnsafeRawBufferPointer, atMost count: Int) -> [String] {
  bytes.split(separator: 0x0A, maxSplits: count - 1, omittingEmptySubsequences: false).map {
    String(decoding: $0, as: UTF8.self)
  }
}

private struct Stored: StoredResponseMetadata {
  var status = 200
  var freshness: FreshnessInfo
  var fields: HeaderFields
  var bodyByteCount = 1000
}

/// Checks the `Cache-Control` lines of a response and those of a later request.
///
/// For any content, lifetimes stay within bounds. A `no-store` or `no-cache` on its own line is effective
/// regardless of the lines before it.
@Sendable private func cacheControl(_ bytes: UnsafeRawBufferPointer) {
  let lines = parts(bytes, atMost: 4)
  var fields = HeaderFields()
  for line in lines.dropLast() { fields.append(name: "Cache-Control", value: line) }
  let directives = ResponseDirectives(fields)
  for seconds in [directives.maxAge, directives.sharedMaxAge] {
    precondition(seconds.map { (0...FreshnessInfo.maximumSeconds).contains($0) } ?? true)
  }
  var forbidden = fields
  forbidden.append(name: "Cache-Control", value: "no-store")
  forbidden.append(name: "Cache-Control", value: "no-cache")
  let strict = ResponseDirectives(forbidden)
  precondition(strict.noStore && strict.noCache)

  var request = RequestHead(url: url)
  request.fields.append(name: "Cache-Control", value: lines.last ?? "")
  _ = RequestDirectives(request.fields)
  for mode in [CachingOptions.Mode.private, .shared] {
    var options = CachingOptions()
    options.mode = mode
    let response = ResponseHead(status: 200, fields: fields)
    guard
      case .store(let kept, let freshness) = Storability.decide(
        request: RequestHead(url: url), response: response, requestTime: now, responseTime: now, options: options)
    else { continue }
    precondition((0...FreshnessInfo.maximumSeconds).contains(freshness.lifetime))
    let stored = Stored(freshness: freshness, fields: kept)
    let later = now.addingTimeInterval(30)
    _ = Reuse.decide(request: request, stored: stored, policy: .useProtocolCachePolicy, now: later, options: options)
    if case .serve = Reuse.decide(
      request: RequestHead(url: url), stored: stored, policy: .useProtocolCachePolicy, now: later, options: options)
    {
      precondition(!directives.noStore || directives.overridesNoStore)
      precondition(!directives.noCache)
    }
  }
}

/// Checks that a parsed date can be formatted and parsed again.
///
/// The exception is the leap second at the end of the year 9999, which is formatted as the second before it.
@Sendable private func dates(_ bytes: UnsafeRawBufferPointer) {
  guard let date = HTTPDate.parse(String(decoding: bytes, as: UTF8.self), now: now) else { return }
  let last = Date(timeIntervalSince1970: 253_402_300_799)
  precondition(HTTPDate.parse(HTTPDate.format(date), now: now) == min(date, last))
}

/// Checks that a request matches its own Vary key, unless `Vary` is `*`, which matches no request.
///
/// Another request matches if and only if it has the same Vary key.
@Sendable private func vary(_ bytes: UnsafeRawBufferPointer) {
  let lines = parts(bytes, atMost: 9)
  var request = RequestHead(url: url)
  for (index, name) in ["Accept-Language", "Accept", "Cookie", "X-Foo", "Authorization"].enumerated()
  where index + 1 < lines.count { request.fields.append(name: name, value: lines[index + 1]) }
  let response = HeaderFields([("Vary", lines[0]), ("Vary", "accept-language, accept, x-foo")])
  let varyKey = VaryKey(request: request, response: response, credentialDigest: { "digest of " + $0 })
  let matchesNothing = varyKey.fields.contains { $0.name == "*" }
  precondition(varyKey.matches(request, credentialDigest: { "digest of " + $0 }) != matchesNothing)
  var other = request
  for (index, name) in ["Accept-Language", "Accept", "X-Foo"].enumerated() where index + 6 < lines.count {
    other.fields.set(name, lines[index + 6])
  }
  let otherVaryKey = VaryKey(request: other, response: response, credentialDigest: { "digest of " + $0 })
  precondition(
    varyKey.matches(other, credentialDigest: { "digest of " + $0 }) == (!matchesNothing && otherVaryKey == varyKey))
  if request.fields.contains("Authorization") {
    precondition(!varyKey.matches(RequestHead(url: url), credentialDigest: { "digest of " + $0 }))
  }
}

/// Checks that a served part is within the stored body, and that combined parts are within their sources.
@Sendable private func range(_ bytes: UnsafeRawBufferPointer) {
  let lines = parts(bytes, atMost: 5)
  func line(_ index: Int) -> String { index < lines.count ? lines[index] : "" }
  if let content = ContentRange(line(1)) {
    precondition(ContentRange(content.rendered) == content)
    if let range = content.range { precondition(range.count > 0) }
  }
  let request = RequestHead(
    url: url, fields: HeaderFields([("Range", line(0))] + (line(2).isEmpty ? [] : [("If-Range", line(2))])))
  let fields: HeaderFields = ["Cache-Control": "max-age=3600", "ETag": line(3), "Content-Range": line(1)]
  for status in [200, 206] {
    guard
      case .store(let kept, let freshness) = Storability.decide(
        request: request, response: ResponseHead(status: status, fields: fields), requestTime: now, responseTime: now,
        options: CachingOptions())
    else { continue }
    let stored = Stored(status: status, freshness: freshness, fields: kept, bodyByteCount: line(4).utf8.count)
    let decision = Reuse.decide(
      request: request, stored: stored, policy: .useProtocolCachePolicy, now: now, options: CachingOptions())
    if case .partial(let range, _, _, _) = decision, let held = PartialContent.bodyRange(of: range, in: stored) {
      precondition(held.lowerBound >= 0 && held.upperBound <= stored.bodyByteCount && held.count == range.count)
    }
    let combination = PartialContent.combine(fields: kept, freshness: freshness, byteCount: 5, stored: stored)
    guard case .combine(_, _, _, let pieces) = combination else { continue }
    for piece in pieces {
      switch piece {
      case .stored(let range): precondition(range.lowerBound >= 0 && range.upperBound <= stored.bodyByteCount)
      case .new(let range): precondition(range.lowerBound >= 0 && range.upperBound <= 5)
      }
    }
  }
}

/// Checks lists of cache groups, targeted fields and the `Cache-Status` field.
@Sendable private func structuredFields(_ bytes: UnsafeRawBufferPointer) {
  let lines = parts(bytes, atMost: 2)
  let fields = HeaderFields(
    lines.flatMap { [("Cache-Groups", $0), ("Cache-Tag", $0), ("X", $0), ("CDN-Cache-Control", $0)] })
  let groups = CacheGroups.groups(of: fields)
  precondition(Set(groups).count == groups.count)
  let tags = ResponseTags.tags(of: fields, in: ["Cache-Tag", "X", "cache-groups"])
  precondition(Set(tags).isSuperset(of: groups) && tags.count { $0.isEmpty } <= 1)
  let directives = ResponseDirectives(fields, targetedFieldNames: ["CDN-Cache-Control"])
  precondition(directives.maxAge.map { (0...FreshnessInfo.maximumSeconds).contains($0) } ?? true)
  var responseFields = HeaderFields()
  CacheStatus(name: lines[0], timeToLive: lines[0].count).append(to: &responseFields)
  precondition(responseFields.isWellFormed || !HeaderFields([("X", lines[0])]).isWellFormed)
}
