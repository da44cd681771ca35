import Foundation
import ResponseStore
import Synchronization

/// When a store that was given up may be opened anew: at once the first time, then after pauses that double. A disk that goes on
/// failing so costs little, and few stores that were given up stay behind in memory.
struct Recovery: Sendable {
  private static let shortestPause = Duration.seconds(1)
  private static let longestPause = Duration.seconds(60)

  private var isUnderWay = false
  private var nextAttempt: ContinuousClock.Instant?
  private var pause = Self.shortestPause
  /// Whether it was said that it does not succeed.
  var hasLoggedFailure = false

  /// Whether to try now; ``end(at:)`` comes after it.
  mutating func begin(at now: ContinuousClock.Instant) -> Bool {
    guard !isUnderWay else { return false }
    if let nextAttempt {
      guard now >= nextAttempt else { return false }
      // All was well for an hour: this is another trouble.
      if now - nextAttempt > .seconds(3600) { pause = Self.shortestPause }
    }
    isUnderWay = true
    return true
  }

  mutating func end(at now: ContinuousClock.Instant) {
    isUnderWay = false
    nextAttempt = now + pause
    pause = min(pause * 2, Self.longestPause)
  }
}

/// A store that was given up is opened anew by whoever meets it next, on a thread of its own; by a removal at once, if somebody
/// else has begun anew. What memory has from before counts as removed, as others may have removed it meanwhile.
extension CacheCore {
  /// After a lookup or a store. Costs a load while all is well.
  func recoverIfGivenUp(_ store: ResponseStore) {
    guard store.isGivenUp, usesDisk || store.mayHaveSuccessor, recovery.withLock({ $0.begin(at: .now) }) else { return }
    Thread.detachNewThread { [weak self] in
      guard let self else { return }
      _ = recover(from: store)
      recovery.withLock { $0.end(at: .now) }
    }
  }

  /// Removes from the store. Where that was given up, another process may have begun anew already, and have what is to be removed:
  /// so the removal is made in the store that is opened anew.
  func removeFromStore(_ remove: (ResponseStore) -> Void) {
    guard var store = storeToRemoveFrom() else { return }
    remove(store)
    while store.isGivenUp {
      guard store.mayHaveSuccessor else { return recoverIfGivenUp(store) }
      guard let anew = recover(from: store) else { return }
      store = anew
      remove(store)
    }
  }

  /// Opens the directory anew, unless another thread has; nil if that cannot be done now.
  private func recover(from store: ResponseStore) -> ResponseStore? {
    resizing.withLock { _ in
      if let current = openStore.load(), current !== store { return current }
      do {
        let anew =
          try usesDisk ? store.openAnew(options: options.storeOptions(diskCapacity: diskCapacity)) : attach(store)
        openStore.set(anew)
        recovery.withLock { $0.hasLoggedFailure = false }
        options.log("LMDBURLCache: The disk tier is opened anew, and works again (\(store.directory))")
        return anew
      } catch {
        let isFirst = recovery.withLock { recovery -> Bool in
          defer { recovery.hasLoggedFailure = true }
          return !recovery.hasLoggedFailure
        }
        if isFirst {
          options.log("LMDBURLCache: The disk tier cannot be opened anew yet, and is tried again. \(error)")
        }
        return nil
      }
    }
  }

  /// Opens what others have begun in the place of a store, as ``storeForRemovals(directory:options:)`` does.
  private func attach(_ store: ResponseStore) throws(StoreError) -> ResponseStore {
    let capacity = try Self.capacity(options: options) { existing throws(StoreError) in
      try store.openAnew(options: existing)
    }
    return try ResponseStore.open(
      directory: store.directory, options: options.storeOptions(diskCapacity: capacity))
  }

  /// The capacity of the store that there is. It is closed again when this returns.
  static func capacity(
    options: LMDBURLCache.Options, open: (ResponseStore.Options) throws(StoreError) -> ResponseStore
  ) throws(StoreError) -> Int {
    var existing = ResponseStore.Options.existing
    existing.allowsUntrustedDirectory = options.allowsUntrustedDirectory
    existing.log = options.log
    let store = try open(existing)
    defer { store.close() }
    return store.capacityByteCount
  }
}
