import ResponseStore
import Synchronization

/// The store of a cache: read at any rate, and replaced when it was given up.
///
/// A store that was replaced stays alive, closed, as long as this: lookups use it without counting a reference, since all
/// threads would change the count. That is a few hundred kilobytes each time; ``Recovery`` sees to it that it is seldom.
///
/// `@unchecked Sendable`: the pointer is atomic, and leads to one of the stores that are held.
struct StoreReference: ~Copyable, @unchecked Sendable {
  private let pointer = Atomic<UnsafeRawPointer?>(nil)
  private let held = Mutex<[ResponseStore]>([])

  func load() -> ResponseStore? {
    pointer.load(ordering: .acquiring).map { Unmanaged<ResponseStore>.fromOpaque($0).takeUnretainedValue() }
  }

  /// Calls `body` with the store, without counting a reference to it. Nil if there is none.
  func use<R>(_ body: (ResponseStore) -> R) -> R? {
    guard let store = pointer.load(ordering: .acquiring) else { return nil }
    return Unmanaged<ResponseStore>.fromOpaque(store)._withUnsafeGuaranteedRef { body($0) }
  }

  func set(_ store: ResponseStore) {
    held.withLock { held in
      if !held.contains(where: { $0 === store }) { held.append(store) }
    }
    pointer.store(UnsafeRawPointer(Unmanaged.passUnretained(store).toOpaque()), ordering: .releasing)
  }
}
