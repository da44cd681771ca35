import FoundationEssentials
public import HTTPCaching
import ResponseStore

/// The request to the origin for one client request, and the permitted uses of its response.
@usableFromInline
package struct FetchPlan<Entry: StoredResponseMetadata & Sendable>: Sendable {
  var request: ClientRequest
  let key: RequestKey
  /// The stored response that the lookup found; `nil` if there was none.
  let entry: Entry?
  /// The number of fetches that had ended before the lookup.
  var endedFetchCount: UInt64 = 0
  /// The fields that validate or complete `entry`; empty for an unconditional request.
  var conditional = HTTPFields()
  /// Whether the request is for the missing range of an incomplete response.
  var isCompletion = false
  /// Whether `entry` may be served if the origin fails.
  var staleOnError: StaleOnError?
  /// The rule that requires the origin.
  var rule: Rule
  /// The reason for the request in Cache-Status.
  let forward: CacheStatus.Forward
  /// An object to retain until the response is stored or dropped.
  var owner: (any AnyObject & Sendable)?

  /// The request to send.
  var outgoing: OutgoingRequest { request.outgoing(conditional: conditional) }

  /// The same plan without the cache's own conditions, to request a complete response.
  var unconditional: FetchPlan {
    var plan = self
    plan.conditional = HTTPFields()
    plan.isCompletion = false
    return plan
  }
}

/// The result of a lookup for a request.
@usableFromInline
package enum LookupResult<Entry: StoredResponseMetadata & Sendable>: Sendable {
  /// The response. If an entry is given, revalidate it in the background.
  case response(ClientResponse<Entry>, revalidating: Entry?)
  indirect case fetch(FetchPlan<Entry>)
  /// Forward the request to the origin, past the storage.
  case bypass(Rule)
}
