import CacheModel

/// Whether the store has accepted a response.
package enum AcceptResult: Sendable, Hashable {
  case accepted
  /// The response was dropped because of its size.
  case tooLarge(SizeLimit)
  /// The response was dropped for another reason: the queue is full, a removal covers it, or the store has failed.
  case dropped
}
