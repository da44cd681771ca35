import Foundation
import HTTPCaching
import ResponseStore
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// A `CachedURLResponse` that knows what it was made from. The Foundation response is built when it is first asked for,
/// since that costs more than all the rest of a lookup.
///
/// `@unchecked Sendable`, as its superclass is: what changes after `init` is atomic or under a lock.
final class StoredURLResponse: CachedURLResponse, @unchecked Sendable {
  /// Built when it is first asked for; by two threads at once, one is kept. It stands first as every hit reads it, and then the
  /// memory beside it.
  private let plain = OnceReference<URLResponse>()
  let record: CachedRecord
  /// What the engine wants done with it, told to the cache's own store method past any override; nil in a lookup's answer.
  let order: Order?

  enum Order: Sendable {
    /// Store it, unless a removal or an invalidation has overtaken it since its origin was asked.
    case store(askedAt: RemovalToken?, unless: @Sendable () -> Bool)
    /// Put its fields and facts in place of those of a stored response (RFC 9111, section 4.3.4).
    case update(StoredURLResponse)
  }

  private struct Aged {
    var age: Int
    var url: URL
    var response: HTTPURLResponse
  }

  /// The last one with an `Age` field.
  private let aged = Mutex<Aged?>(nil)
  /// The URL by which it was found; nil where the response is at hand anyway.
  private let askedURL: URL?

  /// Stands in for the response in the superclass, whose initializer wants one.
  private static let nothing = URLResponse(
    url: URL(fileURLWithPath: "/"), mimeType: nil, expectedContentLength: 0, textEncodingName: nil)

  /// - Parameters:
  ///   - response: The Foundation response, if it is at hand.
  ///   - url: The URL by which it was found.
  init(
    _ record: CachedRecord, response: URLResponse? = nil, url: URL? = nil, userInfo: [AnyHashable: Any]? = nil,
    storagePolicy: URLCache.StoragePolicy = .allowed, order: Order? = nil
  ) {
    self.record = record
    self.order = order
    askedURL = url
    if let response { plain.storeIfNil(response) }
    let userInfo = userInfo ?? (record.attachment.flatMap { ResponseAttachment(bytes: $0)?.userInfoDictionary })
    super.init(response: Self.nothing, data: Data(), userInfo: userInfo, storagePolicy: storagePolicy)
  }

  /// The same response as a caller handed it in: his objects are given back as long as they are in memory.
  convenience init(_ record: CachedRecord, copying cached: CachedURLResponse) {
    self.init(record, response: cached.response, userInfo: cached.userInfo, storagePolicy: cached.storagePolicy)
  }

  required init?(coder: NSCoder) {
    // Nothing archives these: the store has a format of its own.
    return nil
  }

  override var data: Data { record.body }

  override var response: URLResponse {
    plain.load() ?? plain.storeIfNil(record.makeURLResponse(asked: askedURL))
  }

  /// The response as the answer to a request, with an `Age` field (RFC 9111, section 4). The last one is kept: within a second
  /// the age is the same.
  ///
  /// - Parameter url: The request's URL, which the answer has too, unless the response was stored with another one.
  func response(age: Int, url: URL) -> URLResponse {
    guard record.status > 0 else { return response }
    return aged.withLock { aged -> SendableResponse in
      if let aged, aged.age == age, aged.url == url { return SendableResponse(aged.response) }
      var head = ResponseHead(status: record.status, fields: record.fields)
      head.fields.set("Age", String(age))
      guard let response = HTTPURLResponse.make(url: record.attachedURL ?? url, head: head) else {
        return SendableResponse(record.makeURLResponse(asked: askedURL))
      }
      aged = Aged(age: age, url: url, response: response)
      return SendableResponse(response)
    }.response
  }
}

/// Carries a response over to another thread. `URLResponse` is immutable and, on Linux, declared `Sendable`-unchecked.
struct SendableResponse: @unchecked Sendable {
  // Sendable: a `URLResponse` never changes after its initializer.
  let response: URLResponse
  init(_ response: URLResponse) { self.response = response }
}
