import Synchronization

/// A reference that is set once and read often.
///
/// Each load of the standard library's `AtomicLazyReference` looks up the type, which costs hundreds of instructions.
///
/// `@unchecked Sendable`: the pointer changes once, atomically, and its object is `Sendable`.
package struct AtomicOnceReference<Object: AnyObject & Sendable>: ~Copyable, @unchecked Sendable {
  /// The retained object, or nil.
  private let pointer = Atomic<UnsafeRawPointer?>(nil)

  deinit {
    if let object = pointer.load(ordering: .acquiring) { Unmanaged<Object>.fromOpaque(object).release() }
  }

  /// Creates a reference to nothing.
  package init() {}

  /// Returns the object; nil if none was set.
  package func load() -> Object? {
    pointer.load(ordering: .acquiring).map { Unmanaged<Object>.fromOpaque($0).takeUnretainedValue() }
  }

  /// Calls `body` with the object without retaining it; returns nil if there is no object.
  ///
  /// Many threads that retain the same object would contend for its reference count.
  package func use<R>(_ body: (Object) -> R) -> R? {
    guard let object = pointer.load(ordering: .acquiring) else { return nil }
    return Unmanaged<Object>.fromOpaque(object)._withUnsafeGuaranteedRef { body($0) }
  }

  /// Returns the object, and makes it if there is none.
  package func load(orMake make: () -> Object) -> Object {
    load() ?? storeIfNil(make())
  }

  /// Sets the object if there is none, and returns the present one.
  @discardableResult
  package func storeIfNil(_ object: Object) -> Object {
    let new = Unmanaged.passRetained(object)
    let (isStored, old) = pointer.compareExchange(
      expected: nil, desired: UnsafeRawPointer(new.toOpaque()), ordering: .acquiringAndReleasing)
    guard !isStored, let old else { return object }
    new.release()
    return Unmanaged<Object>.fromOpaque(old).takeUnretainedValue()
  }
}
