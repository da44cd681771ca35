public import FoundationEssentials

/// Where a storage keeps the body of a response while it arrives.
///
/// Nothing is visible to lookups until ``ResponseStorage/store(_:for:)`` receives the response with this destination
/// (``ProposedResponse/arrivedBody``). If it is released before, the storage frees the bytes.
///
/// ``write(_:)`` and ``complete()`` are called one at a time, on a thread that may block. The other members are called
/// by any thread.
public protocol BodyDestination: AnyObject, Sendable {
  /// Appends the bytes of the pieces, in their order. Blocks while they are written. Returns false if the body cannot
  /// be stored; no more is written then.
  func write(_ pieces: [Data]) -> Bool

  /// Writes what is left. Blocks. Returns false if the body cannot be stored.
  func complete() -> Bool

  /// The number of bytes that ``read(_:)`` can read. It can be lower than what was written.
  var readableByteCount: Int { get }

  /// Returns bytes that were written; nil if they are lost. May wait for the disk.
  func read(_ range: Range<Int>) -> Data?
}

/// How a storage takes the body of a response.
public enum BodyPlacement: Sendable {
  /// In one piece, which is collected in memory up to this size. A larger body is not stored.
  case inMemory(maximumByteCount: Int)
  /// While it arrives.
  case whileArriving(any BodyDestination)
}
