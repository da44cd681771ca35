import Synchronization

/// A number in memory that several processes share.
///
/// `@unchecked Sendable`: the pointer is constant, every access is atomic, and `memory` keeps the number.
struct SharedWord: @unchecked Sendable {
  private let pointer: UnsafeMutablePointer<Atomic<UInt64>>
  private let memory: AnyObject

  /// - Parameter memory: The object that keeps the memory of the number.
  init(_ pointer: UnsafeMutablePointer<Atomic<UInt64>>, in memory: AnyObject) {
    (self.pointer, self.memory) = (pointer, memory)
  }

  @inline(__always)
  var value: UInt64 {
    get { pointer.pointee.load(ordering: .acquiring) }
    nonmutating set { pointer.pointee.store(newValue, ordering: .releasing) }
  }
}
