import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// A `CachedURLResponse` with a stored response.
///
/// The Foundation response is created on first access, because that costs more than the rest of a lookup.
///
/// `@unchecked Sendable` like its superclass: state that changes after `init` is atomic or guarded by a lock.
final class LMDBCachedURLResponse: CachedURLResponse, @unchecked Sendable {
  /// The Foundation response. If two threads create it at once, the first result is kept.
  ///
  /// Declared first, because every hit reads it and the memory next to it.
  private let baseResponse = AtomicOnceReference<URLResponse>()
  let record: CacheEntry
  /// Whether this is the result of a lookup on disk, and no lookup has found it in memory since.
  private let isFromDisk: Atomic<Bool>

  private struct ResponseWithAge {
    var provenance: CacheProvenance
    var url: URL
    var response: HTTPURLResponse
  }

  /// The last response with an `Age` field and its provenance.
  private let responseWithAge = Mutex<ResponseWithAge?>(nil)
  /// The operation that the caching client requests from a subclass with this response; nil for other responses.
  let requestedOperation = AtomicOnceReference<SubclassDetour.RequestedOperation>()
  /// The URL of the lookup's request; nil if `baseResponse` was given.
  private let askedURL: URL?

  /// A placeholder for the superclass, whose initializer requires a response.
  private static let nothing = URLResponse(
    url: URL(fileURLWithPath: "/"), mimeType: nil, expectedContentLength: 0, textEncodingName: nil)

  /// - Parameters:
  ///   - response: The Foundation response, if there is one already.
  ///   - url: The URL of the lookup's request.
  ///   - isFromDisk: Whether a lookup has read the record from disk.
  init(
    _ record: CacheEntry, response: URLResponse? = nil, url: URL? = nil, userInfo: [AnyHashable: Any]? = nil,
    storagePolicy: URLCache.StoragePolicy = .allowed, isFromDisk: Bool = false
  ) {
    self.record = record
    self.isFromDisk = Atomic(isFromDisk)
    askedURL = url
    if let response { baseResponse.storeIfNil(response) }
    let userInfo = userInfo ?? (record.attachment.flatMap { ResponseAttachment(bytes: $0)?.userInfoDictionary })
    super.init(response: Self.nothing, data: Data(), userInfo: userInfo, storagePolicy: storagePolicy)
  }

  /// Wraps the caller's response. While the entry is in the memory tier, lookups return the caller's own objects.
  convenience init(_ record: CacheEntry, copying cached: CachedURLResponse) {
    self.init(record, response: cached.response, userInfo: cached.userInfo, storagePolicy: cached.storagePolicy)
  }

  /// Returns this response with its freshness after a soft purge; itself if that is the same.
  func softPurged(at date: Date) -> LMDBCachedURLResponse {
    let stale = record.softPurged(at: date)
    guard stale.freshness != record.freshness else { return self }
    return LMDBCachedURLResponse(
      stale, response: baseResponse.load(), url: askedURL, userInfo: userInfo, storagePolicy: storagePolicy)
  }

  required init?(coder: NSCoder) {
    // Archiving is not supported; the store has its own format.
    return nil
  }

  override var data: Data { record.body }

  override var response: URLResponse {
    baseResponse.load { record.makeURLResponse(asked: askedURL) }
  }

  /// The tier in which the last lookup found this response.
  var tier: CacheProvenance.Tier { isFromDisk.load(ordering: .relaxed) ? .disk : .memory }

  /// Records that a lookup has found this response in the memory tier.
  func recordMemoryHit() {
    // Usually false already. A write would move the cache line between processors.
    if isFromDisk.load(ordering: .relaxed) { isFromDisk.store(false, ordering: .relaxed) }
  }

  /// Returns the response to a request with an `Age` field (RFC 9111, section 4) and its provenance.
  ///
  /// The last result is reused while the URL and the provenance, with the age in whole seconds, are the same.
  ///
  /// - Parameter url: The request's URL, which is also the response's unless another one was stored with it.
  func response(with provenance: CacheProvenance, url: URL) -> URLResponse {
    guard record.status > 0 else { return response }
    return responseWithAge.withLock { last -> URLResponse in
      if let last, last.provenance.isSame(as: provenance), last.url == url { return last.response }
      var head = ResponseHead(status: record.status, fields: record.fields)
      head.fields.set("Age", String(provenance.age))
      guard
        let response = HTTPURLResponse.make(url: record.attachedURL ?? url, head: head, provenance: provenance)
      else { return record.makeURLResponse(asked: askedURL) }
      last = ResponseWithAge(provenance: provenance, url: url, response: response)
      return response
    }
  }
}
