import CacheModel
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching

/// A stored response as a `CachedURLResponse`.
///
/// The Foundation response is created on first access, because that costs more than the rest of a lookup.
///
/// `@unchecked Sendable` like its superclass: its own properties are constant and `Sendable`.
final class LMDBCachedURLResponse: CachedURLResponse, @unchecked Sendable {
  /// The stored response.
  let entry: CacheEntry
  /// The operation that the caching client requests from a subclass with this response; nil for other responses.
  let requestedOperation: SubclassDetour.RequestedOperation?
  /// The URL of the lookup's request, if known. It is usually the response's URL, which is then not parsed again.
  private let askedURL: URL?

  /// A placeholder for the superclass, whose initializer requires a response.
  private static let nothing = URLResponse(
    url: URL(fileURLWithPath: "/"), mimeType: nil, expectedContentLength: 0, textEncodingName: nil)

  init(_ entry: CacheEntry, askedURL: URL? = nil, requestedOperation: SubclassDetour.RequestedOperation? = nil) {
    self.entry = entry
    self.askedURL = askedURL
    self.requestedOperation = requestedOperation
    let prepared = PreparedURLResponse.known(of: entry)
    super.init(
      response: Self.nothing, data: Data(),
      userInfo: prepared?.userInfo ?? ResponseAttachment(bytes: entry.attachment)?.userInfoDictionary,
      storagePolicy: prepared?.storagePolicy ?? .allowed)
  }

  required init?(coder: NSCoder) {
    // Archiving is not supported; the store has its own format.
    return nil
  }

  override var data: Data { entry.readBody }

  override var response: URLResponse { PreparedURLResponse.of(entry).response(of: entry, askedURL: askedURL) }
}
