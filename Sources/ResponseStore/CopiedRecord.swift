import FoundationEssentials

/// A record as it was copied out of the file, with where it stood: the head's bytes, then the body's. One piece of memory
/// for all of it, as taking memory costs more than all the rest of a lookup.
///
/// `@unchecked Sendable`: filled by the one who makes it, before anybody else sees it, and never changed again.
struct CopiedRecord: @unchecked Sendable {
  private let buffer: Buffer

  private final class Buffer: ManagedBuffer<Origin, UInt8> {}

  /// Where the record stood, and how the memory is laid out. A body that stands in the record directly follows the head,
  /// as the head's checksum covers both.
  struct Origin {
    let rowID: UInt64
    /// The last removal before it was looked for.
    let snapshot: UInt64
    /// Whether other records are stored for the key.
    let hasOthers: Bool
    /// The bytes of the record in `heads`: the head, and a body that stands in it.
    let recordByteCount: Int
    let bodyOffset: Int
    let bodyByteCount: Int

    init(_ layout: HeadLayout, rowID: UInt64, snapshot: UInt64, hasOthers: Bool) {
      self.rowID = rowID
      self.snapshot = snapshot
      self.hasOthers = hasOthers
      recordByteCount = layout.raw.count
      bodyByteCount = layout.bodyByteCount
      bodyOffset = layout.isBodyInline ? recordByteCount - bodyByteCount : (recordByteCount + 15) & ~15
    }
  }

  /// Copies a record, with the body that stands in it; memory for another body is left to be filled.
  init(_ record: HeadLayout, rowID: UInt64, snapshot: UInt64, hasOthers: Bool) {
    let origin = Origin(record, rowID: rowID, snapshot: snapshot, hasOthers: hasOthers)
    let made = Buffer.create(minimumCapacity: origin.bodyOffset + origin.bodyByteCount) { _ in origin }
    // `create` makes an object of the class that it is called on; its result's type is the superclass.
    buffer = unsafeDowncast(made, to: Buffer.self)
    memory.copyMemory(from: record.raw.baseAddress!, byteCount: record.raw.count)
  }

  // By pointer: each use of the property `header` would be checked for exclusive access.
  var origin: Origin { buffer.withUnsafeMutablePointerToHeader { $0.pointee } }
  private var memory: UnsafeMutableRawPointer {
    buffer.withUnsafeMutablePointerToElements { UnsafeMutableRawPointer($0) }
  }

  /// Where the body is, or is to be put by the one who made this.
  var bodyMemory: UnsafeMutableRawPointer { memory + origin.bodyOffset }

  /// The head; the body in it too, if there is one.
  func withHead<R>(_ body: (HeadLayout) -> R) -> R {
    withExtendedLifetime(buffer) {
      body(HeadLayout(checked: UnsafeRawBufferPointer(start: memory, count: origin.recordByteCount)))
    }
  }

  /// The body in its place.
  func withBody<R>(_ body: (UnsafeRawBufferPointer) -> R) -> R {
    withExtendedLifetime(buffer) {
      body(UnsafeRawBufferPointer(start: bodyMemory, count: origin.bodyByteCount))
    }
  }

  /// The body in its place; it keeps the memory alive.
  var body: Data {
    let origin = origin
    guard origin.bodyByteCount > 0 else { return Data() }
    return Data(
      bytesNoCopy: memory + origin.bodyOffset, count: origin.bodyByteCount,
      deallocator: .custom { [buffer] _, _ in withExtendedLifetime(buffer) {} })
  }

  /// Whether head and body are what their checksums say.
  var isIntact: Bool {
    withHead { head in
      head.hasRightChecksum && withBody { head.bodyChecksum == XXHash.digest64($0) }
    }
  }
}
