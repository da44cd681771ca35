import FoundationEssentials

/// The bytes of a record as they were copied out of the file: the head, then the body. One piece of memory for both, as
/// taking memory costs more than all the rest of a lookup.
///
/// `@unchecked Sendable`: filled by the one who makes it, before anybody else sees it, and never changed again.
struct CopiedRecord: @unchecked Sendable {
  private let buffer: Buffer

  private final class Buffer: ManagedBuffer<Parts, UInt8> {}

  /// How the memory is laid out. A body that stands in the record directly follows the head, as the head's checksum covers
  /// both.
  private struct Parts {
    /// The bytes of the record in `heads`: the head, and a body that stands in it.
    var recordByteCount: Int
    var bodyOffset: Int
    var bodyByteCount: Int

    init(_ layout: HeadLayout) {
      recordByteCount = layout.raw.count
      bodyByteCount = layout.bodyByteCount
      bodyOffset = layout.isBodyInline ? recordByteCount - bodyByteCount : (recordByteCount + 15) & ~15
    }
  }

  /// Copies a record, with the body that stands in it; memory for another body is left to be filled.
  init(_ record: HeadLayout) {
    let parts = Parts(record)
    let made = Buffer.create(minimumCapacity: parts.bodyOffset + parts.bodyByteCount) { _ in parts }
    // `create` makes an object of the class that it is called on; its result's type is the superclass.
    buffer = unsafeDowncast(made, to: Buffer.self)
    memory.copyMemory(from: record.raw.baseAddress!, byteCount: record.raw.count)
  }

  // By pointer: each use of the property `header` would be checked for exclusive access.
  private var parts: Parts { buffer.withUnsafeMutablePointerToHeader { $0.pointee } }
  private var memory: UnsafeMutableRawPointer {
    buffer.withUnsafeMutablePointerToElements { UnsafeMutableRawPointer($0) }
  }

  /// Where the body is, or is to be put by the one who made this.
  var bodyMemory: UnsafeMutableRawPointer { memory + parts.bodyOffset }

  /// The head; the body in it too, if there is one.
  func withHead<R>(_ body: (HeadLayout) -> R) -> R {
    withExtendedLifetime(buffer) {
      body(HeadLayout(checked: UnsafeRawBufferPointer(start: memory, count: parts.recordByteCount)))
    }
  }

  /// The body in its place; it keeps the memory alive.
  var body: Data {
    guard parts.bodyByteCount > 0 else { return Data() }
    return Data(
      bytesNoCopy: bodyMemory, count: parts.bodyByteCount,
      deallocator: .custom { [buffer] _, _ in withExtendedLifetime(buffer) {} })
  }

  /// Whether head and body are what their checksums say.
  var isIntact: Bool {
    withHead { head in
      head.hasRightChecksum
        && head.bodyChecksum
          == XXHash.digest64(UnsafeRawBufferPointer(start: bodyMemory, count: parts.bodyByteCount))
    }
  }
}
