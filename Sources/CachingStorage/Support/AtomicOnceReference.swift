import Synchronization

/// A reference that is set once and read often.
///
/// Each load of the standard library's `AtomicLazyReference` looks up the type, which costs hundreds of instructions.
///
/// The members are inlinable, because a call of a generic function of another module costs hundreds of instructions,
/// too.
///
/// `@unchecked Sendable`: the pointer changes once, atomically, and its object is `Sendable`.
@usableFromInline
package struct AtomicOnceReference<Object: AnyObject & Sendable>: ~Copyable, @unchecked Sendable {
  /// The retained object, or nil.
  @usableFromInline let pointer = Atomic<UnsafeRawPointer?>(nil)

  @inlinable
  deinit {
    if let object = pointer.load(ordering: .acquiring) { Unmanaged<Object>.fromOpaque(object).release() }
  }

  /// Creates a reference to nothing.
  @inlinable
  package init() {}

  /// Returns the object; nil if none was set.
  @inlinable
  package func load() -> Object? {
    pointer.load(ordering: .acquiring).map { Unmanaged<Object>.fromOpaque($0).takeUnretainedValue() }
  }

  /// Calls `body` with the object without retaining it; returns nil if there is no object.
  ///
  /// Many threads that retain the same object would contend for its reference count.
  @inlinable
  package func use<R>(_ body: (Object) -> R) -> R? {
    guard let object = pointer.load(ordering: .acquiring) else { return nil }
    return Unmanaged<Object>.fromOpaque(object)._withUnsafeGuaranteedRef { body($0) }
  }

  /// Returns the object, and makes it if there is none.
  @inlinable
  package func load(orMake make: () -> Object) -> Object {
    load() ?? storeIfNil(make())
  }

  /// Sets the object if there is none, and returns the present one.
  @discardableResult
  @inlinable
  package func storeIfNil(_ object: Object) -> Object {
    let new = Unmanaged.passRetained(object)
    let (isStored, old) = pointer.compareExchange(
      expected: nil, desired: UnsafeRawPointer(new.toOpaque()), ordering: .acquiringAndReleasing)
    guard !isStored, let old else { return object }
    new.release()
    return Unmanaged<Object>.fromOpaque(old).takeUnretainedValue()
  }
}
