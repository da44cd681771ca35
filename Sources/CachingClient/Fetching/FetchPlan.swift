import CacheModel
import FoundationEssentials
public import HTTPCaching

/// The request to the origin for one client request, and the permitted uses of its response.
///
/// A class, because a fetch passes it to many functions, and each copy would retain all of its parts.
@usableFromInline
package final class FetchPlan<Entry: StoredResponseMetadata & Sendable>: Sendable {
  let request: CachingClientRequest
  /// The key of the request's URL.
  let key: RequestKey
  /// The stored response that the lookup found; `nil` if there was none.
  let entry: Entry?
  /// The point before the lookup.
  let start: LookupStart
  /// The fields that validate or complete `entry`; empty for an unconditional request.
  let conditional: HeaderFields
  /// Whether `entry` may be served if the origin fails.
  let staleOnError: StaleOnError?
  /// The rule that requires the origin.
  let rule: Rule
  /// The reason for the request in Cache-Status.
  let forward: CacheStatus.Forward
  /// The key by which requests share the fetch.
  let coalescingKey: CoalescingKey
  /// An object to retain until the response is stored or dropped.
  let owner: (any AnyObject & Sendable)?

  init(
    request: CachingClientRequest, key: RequestKey, entry: Entry?, start: LookupStart,
    conditional: HeaderFields = HeaderFields(), staleOnError: StaleOnError? = nil, rule: Rule,
    forward: CacheStatus.Forward, owner: (any AnyObject & Sendable)? = nil, coalescingKey: CoalescingKey? = nil
  ) {
    self.request = request
    self.key = key
    self.entry = entry
    self.start = start
    self.conditional = conditional
    self.staleOnError = staleOnError
    self.rule = rule
    self.forward = forward
    self.owner = owner
    self.coalescingKey = coalescingKey ?? CoalescingKey(request.identity ?? key, of: request.head)
  }

  var outgoing: OutgoingRequest { request.outgoing(conditional: conditional) }

  /// Whether a soft purge has made the stored response stale.
  var isSoftPurged: Bool { entry?.freshness.flags.contains(.softPurged) == true }

  /// Whether the request is for the missing range of an incomplete response.
  var isCompletion: Bool { conditional.contains("If-Range") }

  /// The same plan without the cache's own conditions, to request a complete response.
  var unconditional: FetchPlan { with(conditional: HeaderFields()) }

  /// Returns the same plan with other values; the request has the same head and the same key.
  func with(request: CachingClientRequest? = nil, conditional: HeaderFields? = nil, rule: Rule? = nil) -> FetchPlan {
    FetchPlan(
      request: request ?? self.request, key: key, entry: entry, start: start,
      conditional: conditional ?? self.conditional, staleOnError: staleOnError, rule: rule ?? self.rule,
      forward: forward, owner: owner, coalescingKey: coalescingKey)
  }
}

/// A point before a lookup, in the order of fetches and in that of removals.
///
/// A fetch or removal that ends after this point may have changed the result of the lookup.
@usableFromInline
package struct LookupStart: Sendable {
  /// The number of fetches that had ended.
  let endedFetchCount: UInt64
  /// The number of invalidations that had begun.
  let invalidationCount: UInt64
  /// The latest removal.
  let removalToken: RemovalToken

  @usableFromInline
  init(endedFetchCount: UInt64, invalidationCount: UInt64, removalToken: RemovalToken) {
    self.endedFetchCount = endedFetchCount
    self.invalidationCount = invalidationCount
    self.removalToken = removalToken
  }
}

/// A stored response that was served stale.
///
/// A class, so that the result of a lookup that finds a fresh response stays small.
@usableFromInline
package final class StaleEntry<Entry: Sendable>: Sendable {
  let entry: Entry
  /// The request under whose key the entry was found.
  let request: CachingClientRequest
  let start: LookupStart

  init(_ entry: Entry, of request: CachingClientRequest, _ start: LookupStart) {
    self.entry = entry
    self.request = request
    self.start = start
  }
}

@usableFromInline
package enum LookupResult<Entry: StoredResponseMetadata & Sendable>: Sendable {
  /// The response. If an entry is given, revalidate it in the background.
  case response(CachingClientResponse<Entry>, revalidating: StaleEntry<Entry>?)
  case fetch(FetchPlan<Entry>)
  /// Forward the request to the origin, past the storage.
  case bypass(Rule)
}
