import CacheModel
import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// Removals of many responses from both tiers.
extension TieredStorage {
  /// Carries out a removal in both tiers.
  package func remove(_ removal: Removal) {
    switch removal.effect {
    case .remove:
      var token = connection.removalToken
      remove([removal.scope], movingPast: &token, of: nil)
    case .makeStale, .suspect: makeStale(removal)
    }
  }

  private func makeStale(_ removal: Removal) {
    connection.removeFromStore { _ = $0.removeDurably([removal]) }
    // If a store has the purge, lookups in the memory tier find it there.
    guard connection.openStore.use({ $0.hasFailed }) ?? true else { return }
    guard let date = removal.effect.mode(at: now).softTime else { return }
    memory.forEach { entry in
      let isCovered = removal.scope.covers(key: entry.key.bytes, storedAt: entry.updatedAt) {
        CacheGroups.groups(of: entry.fields)
      }
      guard isCovered else { return }
      // Always insert a new entry, so that a validation that began before does not find the old one to update.
      let token = entry.removalToken.load(ordering: .relaxed)
      memory.exchange(entry, for: entry.softPurged(at: date, removalToken: token))
    }
  }

  /// Removes responses from both tiers in one pass over the memory tier.
  ///
  /// - Parameters:
  ///   - token: The token of a response that the removal does not cover; it is moved past the removal.
  ///   - responseKey: The cache key of that response; nil if there is none.
  package func remove(_ scopes: [RemovalScope], movingPast token: inout RemovalToken, of responseKey: RequestKey?) {
    connection.removeFromStore { store in
      store.remove(scopes, movingPast: &token, of: responseKey)
    }
    memory.removeAll { record in
      scopes.contains { scope in
        scope.covers(key: record.key.bytes, storedAt: record.updatedAt) { CacheGroups.groups(of: record.fields) }
      }
    }
  }
}
