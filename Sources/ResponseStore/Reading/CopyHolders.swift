import CacheModel
import Synchronization

/// A holder of copies of a store's responses in this process: the memory tier of a cache.
package protocol CopyHolder: AnyObject, Sendable {
  /// Drops the copies of all variants of a key. A copy that was looked up before this call must not be kept either.
  func dropCopies(of key: RequestKey)
}

/// The holders of copies of one store's responses.
///
/// Several caches of one directory share a store, and each has a memory tier. A write through one cache makes all other
/// tiers drop the key before it returns, so that no lookup in this process finds an older response. This costs lookups
/// nothing, and writes nothing if there is only one cache.
final class CopyHolders: Sendable {
  private struct Reference {
    weak var holder: (any CopyHolder)?
  }

  private let references = Monitor<[Reference]>([])
  /// The maximum number of holders so far.
  private let count = Atomic<Int>(0)

  /// Adds a holder. Call this before it holds a copy.
  func add(_ holder: any CopyHolder) {
    references.withLock { references in
      references.removeAll { $0.holder == nil || $0.holder === holder }
      references.append(Reference(holder: holder))
      count.max(references.count, ordering: .sequentiallyConsistent)
    }
  }

  /// Whether there have been several holders at a time. It then stays true.
  var areSeveral: Bool { count.load(ordering: .sequentiallyConsistent) > 1 }

  /// Makes all holders except `writer` drop their copies of a key.
  ///
  /// Call this when the new response can be looked up, so that later copies are of the new response.
  func dropCopies(of key: RequestKey, except writer: (any CopyHolder)?) {
    guard count.load(ordering: .sequentiallyConsistent) > (writer == nil ? 0 : 1) else { return }
    let others = references.withLock { references in
      references.compactMap { $0.holder === writer ? nil : $0.holder }
    }
    for other in others { other.dropCopies(of: key) }
  }
}
