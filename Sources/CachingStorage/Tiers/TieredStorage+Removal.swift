import CacheModel

/// Removals of many responses from both tiers.
extension TieredStorage {
  /// Carries out a removal in both tiers.
  package func remove(_ removal: Removal) {
    guard case .stale(let date) = removal.effect else {
      var token = connection.removalToken
      return remove([removal.scope], movingPast: &token, of: nil)
    }
    connection.removeFromStore { _ = $0.removeDurably([removal]) }
    // If a store has the purge, lookups in the memory tier find it there.
    guard connection.openStore.use({ $0.hasFailed }) ?? true else { return }
    memory.forEach { entry in
      guard removal.scope.covers(key: entry.key.bytes, storedAt: entry.updatedAt, fields: { entry.fields }) else {
        return
      }
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
    memory.removeAll { entry in
      scopes.contains { $0.covers(key: entry.key.bytes, storedAt: entry.updatedAt) { entry.fields } }
    }
  }
}
