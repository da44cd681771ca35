// The declarations of swift-nio 2.100.0 that the adapters use.
import Dispatch

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
public struct TimeAmount: Sendable, Hashable, Comparable {
  /// The number of nanoseconds.
  public let nanoseconds: Int64

  /// A number of seconds.
  public static func seconds(_ amount: Int64) -> TimeAmount { TimeAmount(.seconds(amount)) }

  /// A number of milliseconds.
  public static func milliseconds(_ amount: Int64) -> TimeAmount { TimeAmount(.milliseconds(amount)) }

  /// Whether a length of time is shorter than another one.
  public static func < (left: TimeAmount, right: TimeAmount) -> Bool { left.nanoseconds < right.nanoseconds }

  /// The length of a duration.
  public init(_ duration: Duration) {
    let (seconds, attoseconds) = duration.components
    nanoseconds = seconds * 1_000_000_000 + attoseconds / 1_000_000_000
  }
}

/// A point in time.
public struct NIODeadline: Sendable, Hashable, Comparable {
  private let uptime: Int64

  /// A point in time that is never reached.
  public static let distantFuture = NIODeadline(uptime: .max)

  /// The present time.
  public static func now() -> NIODeadline {
    NIODeadline(uptime: Int64(clamping: DispatchTime.now().uptimeNanoseconds))
  }

  /// Whether a point in time is before another one.
  public static func < (left: NIODeadline, right: NIODeadline) -> Bool { left.uptime < right.uptime }

  /// The time between two points in time.
  public static func - (left: NIODeadline, right: NIODeadline) -> TimeAmount {
    TimeAmount(.nanoseconds(left.uptime - right.uptime))
  }

  /// The point in time after a length of time.
  public static func + (left: NIODeadline, right: TimeAmount) -> NIODeadline {
    let (sum, overflow) = left.uptime.addingReportingOverflow(right.nanoseconds)
    return overflow ? .distantFuture : NIODeadline(uptime: max(0, sum))
  }
}
