import CacheModel
import FoundationEssentials

/// A copy of a record: the record header, then the body unless it stays in the store, in one piece of memory.
///
/// `@unchecked Sendable`: the memory is filled before it is shared, and then never changed.
struct CopiedRecord: @unchecked Sendable {
  private let buffer: Buffer

  private struct Header {
    let origin: Origin
    let storedBody: StoredBody?
    /// The memory, if it is not that of the buffer's elements.
    let block: UnsafeMutableRawPointer?
  }

  private final class Buffer: ManagedBuffer<Header, UInt8> {
    deinit {
      if let block = withUnsafeMutablePointerToHeader({ $0.pointee.block }) { CopyMemory.giveBack(block) }
    }
  }

  /// The origin of the copy, and the layout of its memory.
  ///
  /// An inline body follows the header directly, because the header's checksum covers both.
  struct Origin {
    let rowID: UInt64
    /// The last removal before the lookup.
    let removalSequence: UInt64
    /// Whether the key has other records.
    let hasOthers: Bool
    /// The bytes of the record in its record log: the header and an inline body.
    let recordByteCount: Int
    let bodyOffset: Int
    let bodyByteCount: Int

    init(_ layout: RecordHeaderView, rowID: UInt64, removalSequence: UInt64, hasOthers: Bool, bodyByteCount: Int) {
      self.rowID = rowID
      self.removalSequence = removalSequence
      self.hasOthers = hasOthers
      recordByteCount = layout.raw.count
      self.bodyByteCount = bodyByteCount
      bodyOffset = layout.isBodyInline ? recordByteCount - bodyByteCount : (recordByteCount + 15) & ~15
    }
  }

  /// Copies a record with an inline body. The memory for another body is left uninitialized.
  ///
  /// - Parameter storedBody: The body, if it stays in the store; only the header is copied then.
  init(
    _ record: RecordHeaderView, rowID: UInt64, removalSequence: UInt64, hasOthers: Bool, storedBody: StoredBody? = nil
  ) {
    let origin = Origin(
      record, rowID: rowID, removalSequence: removalSequence, hasOthers: hasOthers,
      bodyByteCount: storedBody == nil ? record.bodyByteCount : 0)
    let byteCount = origin.bodyOffset + origin.bodyByteCount
    let block = CopyMemory.copyByteCounts.contains(byteCount) ? CopyMemory.take() : nil
    let made = Buffer.create(minimumCapacity: block == nil ? byteCount : 0) { _ in
      Header(origin: origin, storedBody: storedBody, block: block)
    }
    // `create` returns an object of this class, but its static type is the superclass.
    buffer = unsafeDowncast(made, to: Buffer.self)
    memory.copyMemory(from: record.raw.baseAddress!, byteCount: record.raw.count)
  }

  // Use a pointer, because each access to the property `header` would be checked for exclusivity.
  var origin: Origin { buffer.withUnsafeMutablePointerToHeader { $0.pointee.origin } }
  /// The body, if it is still in the store.
  var storedBody: StoredBody? { buffer.withUnsafeMutablePointerToHeader { $0.pointee.storedBody } }
  private var memory: UnsafeMutableRawPointer {
    buffer.withUnsafeMutablePointers { $0.pointee.block ?? UnsafeMutableRawPointer($1) }
  }

  /// The memory of the body, which the creator fills.
  var bodyMemory: UnsafeMutableRawPointer { memory + origin.bodyOffset }

  /// Ends the freshness in the copy, like a soft purge. Call this before the copy is shared.
  func endFreshness(at date: Date) {
    let freshness = withHead { $0.freshness.softPurged(at: date) }
    RecordHeader.putFreshness(
      freshness, into: UnsafeMutableRawBufferPointer(start: memory, count: origin.recordByteCount))
  }

  /// Calls `body` with the record header, which includes an inline body.
  func withHead<R>(_ body: (RecordHeaderView) -> R) -> R {
    withExtendedLifetime(buffer) {
      body(RecordHeaderView(checked: UnsafeRawBufferPointer(start: memory, count: origin.recordByteCount)))
    }
  }

  /// The bytes of the body, valid while this value or a copy of it exists. Traps if the body is still in the store.
  var bodyBytes: UnsafeRawBufferPointer {
    buffer.withUnsafeMutablePointerToHeader { header in
      if header.pointee.storedBody != nil { Trap.bodyIsInStore() }
      let origin = header.pointee.origin
      return UnsafeRawBufferPointer(start: memory + origin.bodyOffset, count: origin.bodyByteCount)
    }
  }

  /// The body, without a copy. The `Data` keeps the memory alive. Traps if the body is still in the store.
  var body: Data {
    if storedBody != nil { Trap.bodyIsInStore() }
    let origin = origin
    guard origin.bodyByteCount > 0 else { return Data() }
    return Data(
      bytesNoCopy: memory + origin.bodyOffset, count: origin.bodyByteCount,
      deallocator: .custom { [buffer] _, _ in withExtendedLifetime(buffer) {} })
  }

  /// Whether header and body match their checksums.
  var isIntact: Bool {
    withHead { head in
      head.hasRightChecksum && head.bodyChecksum == XXHash.digest64(bodyBytes)
    }
  }
}
