import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching

/// A request that can be answered by other machines' responses.
///
/// Nothing of a request with credentials, conditions of its own, a range, or a partition that is not shared ever leaves
/// the machine. Of the content of a query only a digest does.
struct SharedRequest: Sendable {
  /// The key that purges cover: that of the URL, or for a query that of the URL's key space.
  let key: RequestKey
  /// The key of the object in Redis: ``key``, for a query with a digest of its content.
  let objectKey: [UInt8]
  /// The head; for a query that of a GET of its equivalent resource (RFC 10008 section 2.2).
  let head: RequestHead
  let hasCookies: Bool

  /// - Returns: nil for a request that must not use shared responses.
  init?(_ request: OutgoingRequest, settings: FleetSettings) {
    let configuration = settings.configuration
    guard configuration.maximumSharedBodyByteCount > 0, let context = request.sharing,
      configuration.sharedPartitions.contains(context.key.partition),
      request.head.credentials == nil, !request.head.namesOtherHost
    else { return nil }
    if let content = context.content {
      if case .inContext? = request.body { return nil }
      var digest: [UInt8] = []
      content.withKeyedBytes { digest = settings.digest(Array(request.head.method.utf8) + [0] + [UInt8]($0)) }
      objectKey = context.key.bytes + [0] + digest
    } else {
      guard request.head.method == "GET", request.body == nil else { return nil }
      objectKey = context.key.bytes
    }
    var hasCookies = false
    for (name, value) in request.head.fields {
      switch name.lowercased() {
      case "range", "if-range", "if-match", "if-unmodified-since", "authorization", "proxy-authorization": return nil
      case "if-none-match", "if-modified-since":
        guard context.hasOwnValidators else { return nil }
      case "cookie": hasCookies = true
      case "cache-control", "pragma":
        let value = value.lowercased()
        if value.contains("no-store") || value.contains("no-cache") || value.contains("max-age") { return nil }
        if value.contains("min-fresh") || value.contains("only-if-cached") { return nil }
      default: break
      }
    }
    var head = request.head
    head.method = "GET"
    (key, self.head, self.hasCookies) = (context.key, head, hasCookies)
  }

  /// The key of the responses that the selecting fields of a `Vary` value distinguish; nil if it matches no request.
  ///
  /// The values are part of a digest only.
  func variantKey(vary: String, settings: FleetSettings) -> [UInt8]? {
    guard !vary.contains("*") else { return nil }
    let vary = VaryKey(request: head, response: ["Vary": vary]) {
      String(decoding: settings.digest(Array($0.utf8)), as: UTF8.self)
    }
    var bytes: [UInt8] = []
    for field in vary.fields {
      bytes += Array(field.name.lowercased().utf8) + [0]
      if let value = field.value { bytes += [1] + Array(value.utf8) }
      bytes.append(0)
    }
    return objectKey + [0] + settings.digest(bytes)
  }

  // MARK: Responses

  /// Decides whether a shared cache may store a response, and this tier may share it.
  func offer(_ response: IncomingResponse, requestTime: Date, responseTime: Date) -> SharedOffer? {
    let head = response.head
    guard !response.usedUnseenCredentials, !response.endsWithConnection, !response.lacksContent,
      (200..<500).contains(head.status), head.status != 206, head.status != 304,
      !head.fields.contains("Set-Cookie"), !head.fields.contains("Set-Cookie2"),
      head.fields["Content-Type"]?.lowercased().hasPrefix("text/event-stream") != true
    else { return nil }
    let directives = ResponseDirectives(head.fields)
    guard directives.maxAge != nil || directives.sharedMaxAge != nil || head.fields.contains("Expires"),
      !directives.isPrivate, directives.privateFields.isEmpty, !directives.noCache, directives.noCacheFields.isEmpty,
      !hasCookies || directives.isPublic || directives.sharedMaxAge != nil
    else { return nil }
    var options = CachingOptions()
    options.mode = .shared
    guard
      case .store(let fields, let freshness) = Storability.decide(
        request: self.head, response: head, requestTime: requestTime, responseTime: responseTime, options: options),
      !freshness.flags.contains(.incomplete), freshness.lifetime > freshness.initialAge
    else { return nil }
    let vary = head.fields["Vary"]
    guard vary?.contains("*") != true else { return nil }
    return SharedOffer(
      status: head.status, fields: fields, freshness: freshness, vary: vary.flatMap { $0.isEmpty ? nil : $0 })
  }
}

/// The decision about a response: the part of it that other machines may use, without the body.
struct SharedOffer: Sendable {
  var status: Int
  var fields: HeaderFields
  var freshness: FreshnessInfo
  var vary: String?

  /// For how long Redis keeps the response, in milliseconds.
  func milliseconds(maximum: Duration) -> Int64 {
    let hasValidator = !freshness.flags.isDisjoint(with: [.strongETag, .weakETag, .lastModified])
    // A stale response with a validator is kept for a while, because a 304 extends it.
    let window = max(
      freshness.staleWhileRevalidate, freshness.staleIfError, hasValidator ? min(freshness.lifetime, 600) : 0, 0)
    let seconds = min(max(0, freshness.lifetime - freshness.initialAge) + window, maximum / .seconds(1))
    return Int64(seconds * 1000)
  }
}
