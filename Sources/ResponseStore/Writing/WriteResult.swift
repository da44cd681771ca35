/// A limit of the store that a response exceeds.
package enum SizeLimit: Sendable, Hashable {
  /// The maximum size of a body.
  case body(byteCount: Int)
  /// The maximum size of the record header, or of the fields or the attachment in it.
  case head(byteCount: Int)
}

/// Whether the store has accepted a response.
package enum AcceptResult: Sendable, Hashable {
  case accepted
  /// The response was dropped because of its size.
  case tooLarge(SizeLimit)
  /// The response was dropped for another reason: the queue is full, a removal covers it, or the store has failed.
  case dropped
}
