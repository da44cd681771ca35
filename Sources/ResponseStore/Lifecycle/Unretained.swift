/// A part of an object that lives as long as the object does, for the parts that every lookup uses: to count a
/// reference at each use, all threads would change one number, which then travels between their processors.
///
/// `@unchecked Sendable`: it leads to what is `Sendable`, and never changes.
package struct Unretained<Part: AnyObject & Sendable>: @unchecked Sendable {
  @usableFromInline let part: Unmanaged<Part>

  /// - Parameter part: The one who makes this must hold it for as long as this is used.
  @inlinable @inline(__always)
  package init(_ part: Part) {
    self.part = Unmanaged.passUnretained(part)
  }

  @inlinable @inline(__always)
  package func use<R>(_ body: (Part) -> R) -> R {
    part._withUnsafeGuaranteedRef(body)
  }
}
