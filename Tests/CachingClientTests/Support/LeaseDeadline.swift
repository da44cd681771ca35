import CacheModel
import Synchronization

/// The deadline of a machine's lease, which is valid until it is ended.
///
/// `@unchecked Sendable`: the pointer is constant, and the word is atomic.
final class LeaseDeadline: @unchecked Sendable {
  private let pointer = UnsafeMutablePointer<Atomic<UInt64>>.allocate(capacity: 1)

  init() { pointer.initialize(to: Atomic(.max)) }

  var lease: MachineLease { MachineLease(deadline: pointer, in: self) }

  func end() { pointer.pointee.store(0, ordering: .releasing) }

  deinit {
    pointer.deinitialize(count: 1)
    pointer.deallocate()
  }
}
