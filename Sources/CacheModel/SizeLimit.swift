/// A limit of the store that a response exceeds.
package enum SizeLimit: Sendable, Hashable {
  /// The maximum size of a body.
  case body(byteCount: Int)
  /// The maximum size of the record header, or of the fields or the attachment in it.
  case head(byteCount: Int)
}
