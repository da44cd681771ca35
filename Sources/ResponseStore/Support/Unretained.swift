/// A reference without reference counting, for objects that every lookup uses.
///
/// Counting references would make all threads write to one cache line.
///
/// `@unchecked Sendable`: the reference is constant, and its target is `Sendable`.
package struct Unretained<Part: AnyObject & Sendable>: @unchecked Sendable {
  @usableFromInline let part: Unmanaged<Part>

  /// Creates a reference.
  ///
  /// - Parameter part: The object. Another reference must retain it for as long as this one is used.
  @inlinable @inline(__always)
  package init(_ part: Part) {
    self.part = Unmanaged.passUnretained(part)
  }

  @inlinable @inline(__always)
  package func use<R>(_ body: (Part) -> R) -> R {
    part._withUnsafeGuaranteedRef(body)
  }
}
