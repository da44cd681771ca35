import Synchronization

/// A holder of copies of a store's responses in this process: the memory tier of a cache.
package protocol CopyHolder: AnyObject, Sendable {
  /// Drops the copies of all variants of a key, and keeps none that was looked up before this call.
  func dropCopies(of key: RequestKey)
}

/// The holders of copies of one store's responses.
///
/// Several caches of one directory share a store, and each has a memory tier. A store has all other tiers drop the key
/// before it returns, so that no lookup in this process finds an older response. Lookups pay nothing for it, nor do the
/// stores of a cache that is alone.
final class CopyHolders: Sendable {
  private struct Reference {
    weak var holder: (any CopyHolder)?
  }

  private let references = Monitor<[Reference]>([])
  private let count = Atomic<Int>(0)

  /// A holder must be added before it holds a copy.
  func add(_ holder: any CopyHolder) {
    references.withLock { references in
      references.removeAll { $0.holder == nil || $0.holder === holder }
      references.append(Reference(holder: holder))
      count.store(references.count, ordering: .sequentiallyConsistent)
    }
  }

  /// Has all holders drop their copies of a key, but for the one that stores. Call this after the new response can be
  /// looked up: a copy that a holder makes from then on is the new one.
  func dropCopies(of key: RequestKey, except writer: (any CopyHolder)?) {
    guard count.load(ordering: .sequentiallyConsistent) > (writer == nil ? 0 : 1) else { return }
    let others = references.withLock { references in
      references.compactMap { $0.holder === writer ? nil : $0.holder }
    }
    for other in others { other.dropCopies(of: key) }
  }
}
