import CacheModel
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// The Foundation responses that were made of a stored response, which later hits reuse.
///
/// `@unchecked Sendable`: `userInfo` is constant, and its values are those of a `CachedURLResponse`, which is
/// `Sendable`.
final class PreparedURLResponse: PreparedEntry, @unchecked Sendable {
  /// The response without an `Age` field. If two threads create it at once, the first result is kept.
  private let baseResponse = AtomicOnceReference<URLResponse>()
  /// The last response with an `Age` field.
  private let responseWithAge = Mutex<ResponseWithAge?>(nil)
  /// The `userInfo` that the program has stored with the response; nil for that of the attachment.
  let userInfo: [AnyHashable: Any]?
  /// The storage policy that the program has stored the response with.
  let storagePolicy: URLCache.StoragePolicy

  private struct ResponseWithAge {
    let provenance: CacheProvenance
    let url: URL
    let response: HTTPURLResponse
  }

  /// Creates an object without responses.
  init(userInfo: [AnyHashable: Any]? = nil, storagePolicy: URLCache.StoragePolicy = .allowed) {
    self.userInfo = userInfo
    self.storagePolicy = storagePolicy
  }

  /// Keeps the objects of a program's response. As long as the entry is in the memory tier, lookups return them.
  init(copying cached: CachedURLResponse) {
    userInfo = cached.userInfo
    storagePolicy = cached.storagePolicy
    baseResponse.storeIfNil(cached.response)
  }

  /// Returns what was made of an entry before; nil if nothing was.
  static func known(of entry: CacheEntry) -> PreparedURLResponse? {
    // The only layer above the tiers of an `LMDBURLCache` prepares nothing else.
    entry.prepared.load().map { unsafeDowncast($0, to: PreparedURLResponse.self) }
  }

  /// Returns the object of an entry, and makes it if there is none.
  static func of(_ entry: CacheEntry) -> PreparedURLResponse {
    known(of: entry) ?? unsafeDowncast(entry.prepared.storeIfNil(PreparedURLResponse()), to: PreparedURLResponse.self)
  }

  func afterUpdate() -> (any PreparedEntry)? {
    userInfo == nil && storagePolicy == .allowed
      ? nil : PreparedURLResponse(userInfo: userInfo, storagePolicy: storagePolicy)
  }

  /// Returns the Foundation response of an entry.
  ///
  /// - Parameter askedURL: The URL of the lookup's request, if known.
  func response(of entry: CacheEntry, askedURL: URL?) -> URLResponse {
    baseResponse.load { Self.makeURLResponse(of: entry, askedURL: askedURL) }
  }

  /// Returns the response to a request with an `Age` field (RFC 9111, section 4) and its provenance.
  ///
  /// The last result is reused while the URL and the provenance, with the age in whole seconds, are the same.
  ///
  /// - Parameter url: The request's URL, which is also the response's unless another one was stored with it.
  func response(of entry: CacheEntry, with provenance: CacheProvenance, url: URL) -> URLResponse {
    guard entry.status > 0 else { return response(of: entry, askedURL: url) }
    return responseWithAge.withLock { last -> URLResponse in
      if let last, last.provenance.isSame(as: provenance), last.url == url { return last.response }
      var head = ResponseHead(status: entry.status, fields: entry.fields)
      head.fields.set("Age", String(provenance.age))
      guard
        let response = HTTPURLResponse.make(
          url: Self.attachedURL(of: entry) ?? url, head: head, provenance: provenance,
          isContentDecoded: entry.freshness.isOfDecodedContent(head.fields))
      else { return Self.makeURLResponse(of: entry, askedURL: url) }
      last = ResponseWithAge(provenance: provenance, url: url, response: response)
      return response
    }
  }

  /// The response's URL, if it differs from the key's.
  private static func attachedURL(of entry: CacheEntry) -> URL? {
    guard let attachment = entry.attachment else { return nil }
    return ResponseAttachment(bytes: attachment)?.url.flatMap { URL(string: $0) }
  }

  private static func makeURLResponse(of entry: CacheEntry, askedURL: URL?) -> URLResponse {
    let attachment = ResponseAttachment(bytes: entry.attachment)
    let url = url(of: entry, attachment, asked: askedURL)
    if entry.status > 0 {
      var joined = FoundationFields()
      entry.forEachField { joined.append(name: $0, value: $1) }
      let response = HTTPURLResponse.make(
        url: url, status: entry.status, fields: joined.fields,
        isContentDecoded: entry.freshness.isOfDecodedContent(entry.fields))
      if let response { return response }
    }
    return URLResponse(
      url: url, mimeType: attachment?.mimeType,
      expectedContentLength: attachment?.expectedContentLength ?? entry.bodyByteCount,
      textEncodingName: attachment?.textEncodingName)
  }

  private static func url(of entry: CacheEntry, _ attachment: ResponseAttachment?, asked: URL?) -> URL {
    if attachment?.url == nil, let asked, asked.baseURL == nil {
      if entry.key.isMade(of: asked.absoluteString) { return asked }
      // The user of a URL is not stored.
      if asked.hasUserInformation, entry.key.isMade(of: asked.textWithoutUserInformation) { return asked }
    }
    // Keys come from valid URLs, so parsing does not fail. If it ever did, a placeholder URL is better than a trap.
    return URL(string: attachment?.url ?? entry.key.urlString) ?? URL(fileURLWithPath: "/")
  }
}
