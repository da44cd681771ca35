// The declarations of swift-nio 2.100.0 that the adapters use.

/// Bytes to be read.
public struct ByteBuffer: Sendable, Hashable {
  private let bytes: [UInt8]

  /// A buffer with a copy of the bytes.
  public init(bytes: some Sequence<UInt8>) { self.bytes = Array(bytes) }

  /// The bytes that can be read.
  public var readableBytesView: ByteBufferView { ByteBufferView(bytes: bytes) }
}

/// The bytes of a buffer as a collection.
public struct ByteBufferView: RandomAccessCollection, Sendable {
  fileprivate let bytes: [UInt8]

  /// The position of the first byte.
  public var startIndex: Int { bytes.startIndex }
  /// The position after the last byte.
  public var endIndex: Int { bytes.endIndex }

  /// The byte at a position.
  public subscript(position: Int) -> UInt8 { bytes[position] }
}

/// A length of time.
public struct TimeAmount: Sendable, Hashable {
  /// The number of nanoseconds.
  public let nanoseconds: Int64

  /// A number of seconds.
  public static func seconds(_ amount: Int64) -> TimeAmount { TimeAmount(.seconds(amount)) }

  /// The length of a duration.
  public init(_ duration: Duration) {
    let (seconds, attoseconds) = duration.components
    nanoseconds = seconds * 1_000_000_000 + attoseconds / 1_000_000_000
  }
}
