import CacheModel
import CachingClient
import FleetRedis
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
  init?(_ request: OutgoingRequest, _ digest: FleetDigest, _ settings: any SharingSettings) {
    guard let context = request.sharing, settings.sharedPartitions.contains(context.key.partition),
      request.head.credentials == nil, !request.head.namesOtherHost
    else { return nil }
    let fields = request.head.fields
    let directives = RequestDirectives(fields)
    guard !directives.noStore, !directives.noCache, !directives.pragmaNoCache, !directives.onlyIfCached,
      directives.maxAge == nil, directives.minFresh == nil,
      context.hasOwnValidators || !fields.contains("If-None-Match") && !fields.contains("If-Modified-Since"),
      !["Range", "If-Range", "If-Match", "If-Unmodified-Since", "Proxy-Authorization"].contains(where: fields.contains)
    else { return nil }
    if let content = context.content {
      if case .inContext? = request.body { return nil }
      var digits: [UInt8] = []
      content.withKeyedBytes { digits = digest.digits(Array(request.head.method.utf8) + [0] + [UInt8]($0)) }
      objectKey = context.key.bytes + [0] + digits
    } else {
      guard request.head.method == "GET", request.body == nil else { return nil }
      objectKey = context.key.bytes
    }
    var head = request.head
    head.method = "GET"
    (key, self.head, hasCookies) = (context.key, head, fields.contains("Cookie"))
  }

  /// The key of the responses that the selecting fields of a `Vary` value distinguish; nil if it matches no request.
  ///
  /// The values are part of a digest only.
  func variantKey(vary: String, _ digest: FleetDigest) -> [UInt8]? {
    guard !vary.contains("*") else { return nil }
    let vary = VaryKey(request: head, response: ["Vary": vary]) {
      String(decoding: digest.digits(Array($0.utf8)), as: UTF8.self)
    }
    var bytes: [UInt8] = []
    for field in vary.fields {
      bytes += Array(field.name.lowercased().utf8) + [0]
      if let value = field.value { bytes += [1] + Array(value.utf8) }
      bytes.append(0)
    }
    return objectKey + [0] + digest.digits(bytes)
  }

  // MARK: Responses

  /// Decides whether a shared cache may store a response, and this tier may share it.
  ///
  /// It shares only whole responses with a lifetime of their own, that no cookie is a part of.
  func offer(_ response: IncomingResponse, requestTime: Date, responseTime: Date) -> SharedOffer? {
    let head = response.head
    guard !response.usedUnseenCredentials, !response.endsWithConnection, !response.lacksContent, head.status < 500,
      !head.isEventStream, !head.fields.contains(anyOf: UnsharedFields.forUser),
      case .store(let fields, let freshness) = Storability.decide(
        request: self.head, response: head, requestTime: requestTime, responseTime: responseTime,
        options: .sharedResponses),
      freshness.flags.isDisjoint(with: [.heuristic, .noCache]), freshness.lifetime > freshness.initialAge
    else { return nil }
    let directives = ResponseDirectives(head.fields)
    guard directives.privateFields.isEmpty, directives.noCacheFields.isEmpty,
      !hasCookies || directives.isPublic || directives.sharedMaxAge != nil
    else { return nil }
    return SharedOffer(
      status: head.status, fields: fields, freshness: freshness,
      vary: head.fields["Vary"].flatMap { $0.isEmpty ? nil : $0 })
  }
}

extension CachingOptions {
  /// The options of the fleet as a shared cache.
  static let sharedResponses = {
    var options = CachingOptions()
    options.mode = .shared
    options.storesPartialContent = false
    return options
  }()
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
