import CachingClient
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching

/// Where a response came from, which rule decided that, and whether it is stored.
///
///     let (_, response) = try await cache.data(for: request)
///     print(response.cacheProvenance?.description ?? "not through a cache")
///
/// A value that any thread can use. ``storage`` is read when it is asked for.
public struct CacheProvenance: Sendable, CustomStringConvertible {
  /// Where the stored response was.
  public enum Tier: String, Sendable, Hashable, CaseIterable {
    /// In the memory of this process.
    case memory
    /// On disk, or on its way there from this process.
    case disk
    /// On another machine of the fleet, which has fetched it.
    case fleet
  }

  /// The source of the response.
  public let source: ResponseSource
  /// Where the stored response was: in memory, on disk, or in the fleet, whose responses count as misses
  /// (`ResponseSource.miss`).
  ///
  /// Nil for a response from the origin, and for one that an override of a subclass made. If several requests look a
  /// response up at once, one that found it on disk may say memory, where the others found it.
  public let tier: Tier?
  /// The age in seconds when the response was given; 0 for a response from the origin that declares no age.
  public let age: Int
  /// The rule that selected this response, with its RFC and section.
  public let reason: Rule
  /// The report on storing; nil for a response from the store.
  private let report: StorageReport?

  /// Whether the response is stored.
  ///
  /// For a response from the origin: `undecided` until its body is complete, for example while a
  /// delegate receives it or the chunks of ``LMDBURLCache/LMDBURLCache/bytes(for:)`` are read. The outcome is there
  /// when `data(for:)` returns, when a completion handler is called, and when a delegate learns that its task is
  /// complete. The exception is a delegate that takes more than 200 ms to decide on caching. A response that shares the
  /// fetch of another request has the outcome of that fetch.
  public var storage: StorageOutcome { report?.outcome ?? .stored }

  init(_ response: CachingClientResponse<CacheEntry>) {
    source = response.source
    tier =
      switch response.entry?.tier {
      case _ where response.reason == .fleet: .fleet
      case .memory: .memory
      case .disk: .disk
      case nil: nil
      }
    age = response.age
    reason = response.reason
    report = response.storageReport
  }

  /// Whether both say the same of a response from the store.
  func isSame(as other: CacheProvenance) -> Bool {
    source == other.source && tier == other.tier && age == other.age && reason == other.reason
      && report === other.report
  }

  /// The source and the tier, the age, the rule, and the outcome of storing.
  public var description: String {
    let place = tier.map { " (\($0.rawValue))" } ?? ""
    let outcome =
      switch storage {
      case .undecided: "storing is undecided"
      case .stored: "stored"
      case .storedInMemory: "stored in memory only"
      case .notStored(let rule): "not stored: \(rule)"
      }
    return "\(source.rawValue)\(place), age \(age) s, \(reason); \(outcome)"
  }
}

extension URLResponse {
  /// Where this response came from: nil if it did not come through an `LMDBURLCache`.
  ///
  /// Responses of ``LMDBURLCache/LMDBURLCache/data(for:)``, ``LMDBURLCache/LMDBURLCache/load(_:)``,
  /// ``LMDBURLCache/LMDBURLCache/bytes(for:)`` and of the data tasks of a caching session have it, also while the body
  /// arrives. It is not in a header field, and not in an archive of the response. Upload tasks, responses that are not
  /// HTTP, and those of `cachedResponse(for:)` have none.
  public var cacheProvenance: CacheProvenance? { (self as? DeliveredResponse)?.provenance }
}

/// A response of the cache, which knows its provenance, and whether its content is decoded.
///
/// `URLSession` hands the object of its protocol on, and a copy is the object itself.
///
/// `@unchecked Sendable` like its superclass: its own properties are constant and `Sendable`.
class DeliveredResponse: HTTPURLResponse, @unchecked Sendable {
  let provenance: CacheProvenance?
  /// Whether the transport has decoded the content, so that `Content-Length` is the length of other bytes.
  let isContentDecoded: Bool

  /// Creates a response; nil if Foundation refuses.
  init?(url: URL, status: Int, fields: [String: String], provenance: CacheProvenance?, isContentDecoded: Bool) {
    self.provenance = provenance
    self.isContentDecoded = isContentDecoded
    super.init(url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: fields)
  }

  required init?(coder: NSCoder) {
    provenance = nil
    isContentDecoded = false
    super.init(coder: coder)
  }

  /// As on Apple's systems, the length of decoded content is unknown, and `Content-Length` stays the origin's.
  override var expectedContentLength: Int64 {
    isContentDecoded ? NSURLSessionTransferSizeUnknown : super.expectedContentLength
  }

  // Programs without this library can read the archive.
  override var classForCoder: AnyClass { HTTPURLResponse.self }
}
