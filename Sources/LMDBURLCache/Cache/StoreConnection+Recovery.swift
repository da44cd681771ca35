import Foundation
import ResponseStore
import Synchronization

/// The times at which a failed store may be reopened: at once the first time, then after pauses that double.
///
/// A disk that fails repeatedly therefore costs little time, and few failed stores stay in memory.
struct ReopenBackoff: Sendable {
  private static let shortestPause = Duration.seconds(1)
  private static let longestPause = Duration.seconds(60)

  private var isUnderWay = false
  private var nextAttempt: ContinuousClock.Instant?
  private var pause = Self.shortestPause
  /// Whether the log says that the attempts fail.
  var hasLoggedFailure = false

  /// Begins an attempt and returns true if one is due. Call ``end(at:)`` after the attempt.
  mutating func begin(at now: ContinuousClock.Instant) -> Bool {
    guard !isUnderWay else { return false }
    if let nextAttempt {
      guard now >= nextAttempt else { return false }
      // After an hour without failures, a failure has another cause.
      if now - nextAttempt > .seconds(3600) { pause = Self.shortestPause }
    }
    isUnderWay = true
    return true
  }

  /// Sets whether the log says that the attempts fail, and returns the previous value.
  mutating func exchangeLoggedFailure(_ isLogged: Bool) -> Bool {
    defer { hasLoggedFailure = isLogged }
    return hasLoggedFailure
  }

  mutating func end(at now: ContinuousClock.Instant) {
    isUnderWay = false
    nextAttempt = now + pause
    pause = min(pause * 2, Self.longestPause)
  }
}

/// Reopening of a failed store.
///
/// The next operation that finds the store failed starts a thread that reopens it. A removal reopens it at once if
/// another process may have recreated the store. The memory tier's older responses then count as removed, because other
/// processes may have removed them in the meantime.
extension StoreConnection {
  /// Reopens the store on another thread if it has failed and an attempt is due.
  ///
  /// Call this after a lookup or a write. It costs one load unless the store has failed.
  func reopenIfFailed(_ store: ResponseStore) {
    guard store.hasFailed, usesDisk || store.mayHaveBeenReplaced, recovery.withLock({ $0.begin(at: .now) }) else {
      return
    }
    Thread.detachNewThread { [weak self] in
      guard let self else { return }
      _ = recover(from: store)
      recovery.withLock { $0.end(at: .now) }
    }
  }

  /// Removes from the store, and from the reopened store if it has failed.
  ///
  /// Another process may have recreated a failed store already and stored covered responses in the new one.
  func removeFromStore(_ remove: (ResponseStore) -> Void) {
    guard var store = storeToRemoveFrom() else { return }
    remove(store)
    while store.hasFailed {
      guard store.mayHaveBeenReplaced else { return reopenIfFailed(store) }
      guard let reopened = recover(from: store) else { return }
      store = reopened
      remove(store)
    }
  }

  /// Reopens the directory unless another thread has done so; returns nil if it cannot be opened now.
  private func recover(from store: ResponseStore) -> ResponseStore? {
    resizing.withLock { _ in
      if let current = openStore.load(), current !== store { return current }
      do {
        let reopened =
          try usesDisk ? store.reopen(options: options.storeOptions(diskCapacity: diskCapacity)) : attach(store)
        connect(reopened)
        publish(reopened)
        activity.observers.emit(.reopened)
        recovery.withLock { $0.hasLoggedFailure = false }
        options.log("LMDBURLCache: Disk caching is on again (\(store.directory))")
        return reopened
      } catch {
        if !recovery.withLock({ $0.exchangeLoggedFailure(true) }) {
          options.log(
            "LMDBURLCache: Disk caching is still off; the store could not be reopened and will be retried. \(error)")
        }
        return nil
      }
    }
  }

  /// Opens the store that another process created in place of a failed one.
  ///
  /// Keeps its capacity, like ``open(directory:diskCapacity:options:)``.
  private func attach(_ store: ResponseStore) throws(StoreError) -> ResponseStore {
    let capacity = try Self.capacity(options: options) { existing throws(StoreError) in
      try store.reopen(options: existing)
    }
    return try ResponseStore.open(
      directory: store.directory, options: options.storeOptions(diskCapacity: capacity))
  }

  /// Returns the capacity of the existing store, which is opened for this and closed again.
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
