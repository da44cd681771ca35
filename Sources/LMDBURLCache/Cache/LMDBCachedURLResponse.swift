import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching
import ResponseStore
import Synchronization

/// A stored response in either tier, as a `CachedURLResponse`.
///
/// The Foundation response is created on first access, because that costs more than the rest of a lookup.
///
/// `@unchecked Sendable` like its superclass: state that changes after `init` is atomic or guarded by a lock.
final class LMDBCachedURLResponse: CachedURLResponse, StoredResponseMetadata, @unchecked Sendable {
  /// The Foundation response. If two threads create it at once, the first result is kept.
  ///
  /// Declared first, because every hit reads it and the memory next to it.
  private let baseResponse = AtomicOnceReference<URLResponse>()
  /// The Vary key.
  let vary: VaryKey
  /// For the memory tier: the point in the order of removals up to which no removal covers the response. Lookups advance
  /// it.
  let removalToken = Atomic<RemovalToken>(0)
  /// For the memory tier: the digest of the key in the store's index; 0 if the store never had the response, or was
  /// emptied without the memory tier.
  let useDigest = Atomic<UInt64>(0)
  /// Whether a lookup in the memory tier used the response since the hand last passed. False at first, so that unused
  /// entries are evicted before used ones.
  let wasUsed = Atomic<Bool>(false)
  /// The approximate size of the response in the memory tier in bytes.
  let memoryByteCount: Int
  let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  let status: Int
  private let bytes: Data
  let freshness: FreshnessInfo
  let storedAt: Date
  /// When a validation last updated the response, or else the time of storing. Removals by date compare this time if
  /// the response is only in memory.
  let updatedAt: Date
  private let source: Source

  private enum Source: Sendable {
    case memory(fields: HeaderFields, attachment: [UInt8]?)
    case store(StoredResponse)

    var attachment: [UInt8]? {
      switch self {
      case .memory(_, let attachment): attachment
      case .store(let stored): stored.attachment
      }
    }

    /// The approximate size of the fields in bytes.
    var fieldsByteCount: Int {
      switch self {
      case .memory(let fields, _): fields.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count }
      case .store(let stored): stored.fieldsByteCount
      }
    }
  }

  /// The approximate size of the objects in bytes, without the bytes that they refer to.
  private static let objectsByteCount = 512

  /// Whether this is the result of a lookup on disk, and no lookup has found it in memory since.
  private let isFromDisk: Atomic<Bool>

  final class ResponseWithAge: Sendable {
    let provenance: CacheProvenance
    let url: URL
    let response: HTTPURLResponse

    init(provenance: CacheProvenance, url: URL, response: HTTPURLResponse) {
      self.provenance = provenance
      self.url = url
      self.response = response
    }
  }

  /// The last response with an `Age` field and its provenance.
  let responseWithAge = Mutex<ResponseWithAge?>(nil)
  /// The operation that the caching client requests from a subclass with this response; nil for other responses.
  let requestedOperation = AtomicOnceReference<SubclassDetour.RequestedOperation>()
  /// The URL of the lookup's request; nil if `baseResponse` was given.
  let askedURL: URL?

  /// A placeholder for the superclass, whose initializer requires a response.
  private static let nothing = URLResponse(
    url: URL(fileURLWithPath: "/"), mimeType: nil, expectedContentLength: 0, textEncodingName: nil)

  // MARK: Creating

  /// Creates a response for the tiers.
  ///
  /// - Parameters:
  ///   - updatedAt: When a validation last updated the response; nil if none has.
  ///   - urlResponse: The Foundation response, if there is one already.
  ///   - userInfo: Nil for that of the attachment.
  init(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil, storedAt: Date,
    updatedAt: Date? = nil, urlResponse: URLResponse? = nil, userInfo: [AnyHashable: Any]? = nil,
    storagePolicy: URLCache.StoragePolicy = .allowed
  ) {
    self.key = key
    status = response.status
    bytes = response.body
    freshness = response.freshness
    self.storedAt = storedAt
    self.updatedAt = updatedAt ?? storedAt
    vary = response.vary
    source = .memory(fields: response.fields, attachment: attachment)
    memoryByteCount = Self.objectsByteCount + key.bytes.count + bytes.count + source.fieldsByteCount
    isFromDisk = Atomic(false)
    askedURL = nil
    if let urlResponse { baseResponse.storeIfNil(urlResponse) }
    super.init(
      response: Self.nothing, data: Data(), userInfo: userInfo ?? Self.userInfo(of: attachment),
      storagePolicy: storagePolicy)
  }

  /// Wraps the caller's response. While the entry is in the memory tier, lookups return the caller's own objects.
  convenience init(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil, storedAt: Date,
    copying cached: CachedURLResponse
  ) {
    self.init(
      response, for: key, attachment: attachment, storedAt: storedAt, urlResponse: cached.response,
      userInfo: cached.userInfo, storagePolicy: cached.storagePolicy)
  }

  /// Creates a response that a lookup has read from disk.
  ///
  /// - Parameter url: The URL of the lookup's request.
  init(_ stored: StoredResponse, key: RequestKey, url: URL?) {
    self.key = key
    status = stored.status
    bytes = stored.storedBody == nil ? stored.body : Data()
    freshness = stored.freshness
    storedAt = stored.storedAt
    updatedAt = stored.updatedAt
    vary = stored.vary
    source = .store(stored)
    memoryByteCount = Self.objectsByteCount + key.bytes.count + bytes.count + source.fieldsByteCount
    isFromDisk = Atomic(true)
    askedURL = url
    super.init(
      response: Self.nothing, data: Data(), userInfo: Self.userInfo(of: source.attachment), storagePolicy: .allowed)
  }

  /// Creates the same response for another place in the memory tier.
  ///
  /// - Parameter freshness: Another freshness; nil for the same.
  init(_ other: LMDBCachedURLResponse, freshness: FreshnessInfo? = nil) {
    vary = other.vary
    memoryByteCount = other.memoryByteCount
    key = other.key
    status = other.status
    bytes = other.bytes
    self.freshness = freshness ?? other.freshness
    storedAt = other.storedAt
    updatedAt = other.updatedAt
    source = other.source
    isFromDisk = Atomic(false)
    askedURL = other.askedURL
    if let response = other.baseResponse.load() { baseResponse.storeIfNil(response) }
    super.init(
      response: Self.nothing, data: Data(), userInfo: other.userInfo, storagePolicy: other.storagePolicy)
  }

  private static func userInfo(of attachment: [UInt8]?) -> [AnyHashable: Any]? {
    attachment.flatMap { ResponseAttachment(bytes: $0)?.userInfoDictionary }
  }

  /// Sets the position in the order of removals, and the digest of the key in the store's index; nil if no store has the
  /// response. Call this before the response is in the memory tier.
  func setPosition(_ token: RemovalToken, useDigest digest: UInt64?) {
    removalToken.store(token, ordering: .relaxed)
    useDigest.store(digest ?? 0, ordering: .relaxed)
  }

  /// Whether the store has the response of the memory tier, too, or has evicted it.
  var isOnDisk: Bool { useDigest.load(ordering: .relaxed) != 0 }

  /// Returns a response for the memory tier that is stale after a soft purge.
  ///
  /// - Parameter token: The point in the order of removals up to which the new response is compared.
  func softPurged(at date: Date, removalToken token: RemovalToken) -> LMDBCachedURLResponse {
    let stale = LMDBCachedURLResponse(self, freshness: freshness.softPurged(at: date))
    stale.setPosition(token, useDigest: useDigest.load(ordering: .relaxed))
    return stale
  }

  /// Whether a lookup in the memory tier prefers this response to another matching one (RFC 9111, section 4.1).
  func goesBefore(_ other: LMDBCachedURLResponse) -> Bool {
    guard vary.hasVaryFields == other.vary.hasVaryFields else { return vary.hasVaryFields }
    return freshness.date >= other.freshness.date
  }

  /// Returns this response with the fields and freshness of a 304 (RFC 9111, section 4.3.4) that came at a time.
  func updated(fields: HeaderFields, freshness: FreshnessInfo, at now: Date) -> LMDBCachedURLResponse {
    LMDBCachedURLResponse(
      CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary), for: key,
      attachment: attachment, storedAt: storedAt, updatedAt: max(now, updatedAt), userInfo: userInfo,
      storagePolicy: storagePolicy)
  }

  required init?(coder: NSCoder) {
    // Archiving is not supported; the store has its own format.
    return nil
  }

  // MARK: Parts

  /// The store's response from which this one was created.
  ///
  /// Its freshness may differ from ``freshness``, which a soft purge can end.
  var stored: StoredResponse? {
    if case .store(let stored) = source { stored } else { nil }
  }

  /// The body. Traps if the lookup left it in the store.
  var body: Data {
    precondition(!bytes.isEmpty || storedBody == nil, "The body is still in the store")
    return bytes
  }

  /// The body in the store, if the lookup left it there.
  var storedBody: StoredBody? { stored?.storedBody }

  var bodyByteCount: Int { bytes.isEmpty ? storedBody?.byteCount ?? 0 : bytes.count }

  var fields: HeaderFields {
    switch source {
    case .memory(let fields, _): fields
    case .store(let stored): stored.fields
    }
  }

  var attachment: [UInt8]? { source.attachment }

  /// The response in the form that the store accepts.
  var cacheable: CacheableResponse {
    CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary)
  }

  override var data: Data { body }

  override var response: URLResponse {
    baseResponse.load { makeURLResponse() }
  }

  /// The tier in which the last lookup found this response.
  var tier: CacheProvenance.Tier { isFromDisk.load(ordering: .relaxed) ? .disk : .memory }

  /// Records that a lookup has found this response in the memory tier.
  func recordMemoryHit() {
    // Usually false already. A write would move the cache line between processors.
    if isFromDisk.load(ordering: .relaxed) { isFromDisk.store(false, ordering: .relaxed) }
  }
}
