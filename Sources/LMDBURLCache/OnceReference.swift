import Synchronization

/// A reference that is set once, and then read at any rate. `AtomicLazyReference` is the same, but each of its loads looks
/// the type up anew, at the cost of hundreds of instructions.
///
/// `@unchecked Sendable`: the pointer changes once, atomically, and leads to an object that is `Sendable`.
struct OnceReference<Object: AnyObject & Sendable>: ~Copyable, @unchecked Sendable {
  /// An object that this holds, or nil.
  private let pointer = Atomic<UnsafeRawPointer?>(nil)

  deinit {
    if let object = pointer.load(ordering: .acquiring) { Unmanaged<Object>.fromOpaque(object).release() }
  }

  func load() -> Object? {
    pointer.load(ordering: .acquiring).map { Unmanaged<Object>.fromOpaque($0).takeUnretainedValue() }
  }

  /// Calls `body` with the object, without counting a reference to it: where all threads do, its count would travel between
  /// their processors. Nil if there is none.
  func use<R>(_ body: (Object) -> R) -> R? {
    guard let object = pointer.load(ordering: .acquiring) else { return nil }
    return Unmanaged<Object>.fromOpaque(object)._withUnsafeGuaranteedRef { body($0) }
  }

  /// Sets the object if there is none. Returns the one that there is now.
  @discardableResult
  func storeIfNil(_ object: Object) -> Object {
    let new = Unmanaged.passRetained(object)
    let (isStored, old) = pointer.compareExchange(
      expected: nil, desired: UnsafeRawPointer(new.toOpaque()), ordering: .acquiringAndReleasing)
    guard !isStored, let old else { return object }
    new.release()
    return Unmanaged<Object>.fromOpaque(old).takeUnretainedValue()
  }
}
