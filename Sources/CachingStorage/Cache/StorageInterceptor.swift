import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching

/// A layer above a cache that may answer the lookups of its caching client, and receives its stores, before the tiers.
///
/// All members can be called from any thread.
package protocol StorageInterceptor: AnyObject, Sendable {
  /// Whether the layer may hold responses that the tiers do not.
  var mayHoldResponses: Bool { get }

  /// Looks up the response to a request under a key, which may be another than the request's.
  func lookup(_ request: CachingClientRequest, at key: RequestKey, in tiers: TieredStorage) -> InterceptedLookup

  /// Returns the additions of the layer to a proposal: bytes to store with the response, and what it has prepared of
  /// it.
  func attachment(
    of proposal: ProposedResponse, for key: RequestKey
  ) -> (bytes: [UInt8]?, prepared: (any PreparedEntry)?)

  /// Takes a response to store; returns false if the tiers must store it.
  func store(_ entry: CacheEntry, _ proposal: ProposedResponse, for request: CachingClientRequest) -> Bool

  /// Takes an update after a validation; returns false if the tiers must make it.
  ///
  /// - Parameters:
  ///   - updated: The response with its new fields and freshness.
  ///   - token: The removal token from before the validation was sent.
  func update(
    _ entry: CacheEntry, to updated: @autoclosure () -> CacheEntry, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) -> Bool

  /// Removes the responses of URLs that the layer may hold.
  func remove(_ urls: [URL], for request: CachingClientRequest)
}

/// The decision of a layer above a cache about a lookup.
package enum InterceptedLookup {
  /// The tiers look the request up.
  case pass
  /// The layer has decided. Nil if it has no response.
  case decided(CacheEntry?)
}
