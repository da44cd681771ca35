import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching

/// Removals. When one returns, no thread or process can read a removed response, even after a crash or a power cut;
/// this includes queued responses.
///
/// Each call waits for one synced write to the removal log, regardless of how much is removed and of other writers. The
/// records are deleted later. Safe from any thread. The calls block, so do not call them from a thread that must not.
extension ResponseStore {
  /// Removes all variants of a key.
  public func remove(_ key: RequestKey) {
    remove(.key(key.bytes))
  }

  /// Removes the responses that a scope covers.
  public func remove(_ scope: RemovalScope) {
    remover.remove([Removal(scope)])
  }

  /// Makes the responses that a scope covers stale (a soft purge). Lookups continue to return them.
  ///
  /// When this returns, all lookups of all threads and processes return them as stale, even after a crash or a power
  /// failure. This includes queued responses. An update by a validation that began before does not make them fresh.
  /// Costs and blocks like ``remove(_:)-(RemovalScope)``. The records are changed later.
  public func softPurge(_ scope: RemovalScope) {
    remover.remove([Removal(scope, .stale(since: context.options.clock()))])
  }

  /// Removes the responses that scopes cover, except the response of `token`, which is moved past the removals.
  ///
  /// If another removal since the token may cover the response, the token stays, and all removals cover the response.
  ///
  /// - Parameter key: The cache key of the response; nil if any removal may cover it.
  package func remove(_ scopes: [RemovalScope], movingPast token: inout RemovalToken, of key: RequestKey?) {
    remover.remove(scopes, movingPast: &token, of: key)
  }

  /// Carries out removals, with one sync.
  ///
  /// - Returns: The sequence number of the last removal; nil if they are not durable. Then some may be in force.
  package func removeDurably(_ removals: [Removal]) -> UInt64? { remover.remove(removals) }

  /// Carries out a removal.
  ///
  /// - Throws: ``StoreError`` if the store failed, for example because the removal could not be logged.
  package func removeOrThrow(_ removal: Removal) throws(StoreError) {
    try checkRemovable()
    remover.remove([removal])
    try throwIfFailed()
  }

  /// Throws if this process cannot write to the removal log. A removal that could not be logged would fail the store
  /// for all processes.
  private func checkRemovable() throws(StoreError) {
    try context.storeDirectory.checkWritable()
    try ProcessLimits.checkFileSize(
      directory: directory, of: "the removal log", byteCount: context.removalLog.byteCount)
  }

  private func throwIfFailed() throws(StoreError) {
    guard hasFailed else { return }
    throw StoreError(
      .failed, directory: directory, reason: "the store failed before the removal was logged",
      remedy: "Try again, after resuming or ending suspended processes that use the directory")
  }

  /// Removes all variants of several keys, or makes them stale, and frees their disk space in a store without threads.
  ///
  /// Costs one sync for up to 256 keys. Waits while the removal log has little space left, because a removal that finds
  /// none for long fails the store.
  ///
  /// - Throws: ``StoreError`` if no process applies the logged removals, or if the removals could not be logged, and
  ///   the store failed because of that. Only the first of the keys may have been removed then.
  package func removeOrThrow(_ keys: [RequestKey], _ effect: RemovalEffect) throws(StoreError) {
    try checkRemovable()
    let log = context.removalLog
    var rest = keys[...]
    while !rest.isEmpty {
      // Half of the log is left to other processes.
      let batch = rest.prefix(log.frameCount / 4)
      let deadline = MonotonicTime.now + context.options.stallTimeout
      while log.frameCount - Int(clamping: log.sequence - min(log.sequence, log.lastApplied)) < 2 * batch.count {
        guard MonotonicTime.now < deadline else {
          throw .busy(directory, reason: "the removal log is full, and no process applies its removals")
        }
        applyRemovals()
        usleep(1000)
      }
      remover.remove(batch.map { Removal(.key($0.bytes), effect) })
      try throwIfFailed()
      applyRemovals()
      rest = rest.dropFirst(batch.count)
    }
  }

  /// Applies removals to a store without threads, and frees their disk space. Waits for about a second at most while no
  /// process commits.
  package func applyRemovals() { remover.applyRemovals() }

  /// Carries out a removal in a store that other processes use, without opening its data.
  ///
  /// Use this if no reader slot is free.
  ///
  /// - Throws: ``StoreError`` if there is no store, no other process uses it, or the removal could not be logged.
  package static func remove(_ removal: Removal, fromStoreInUseAt path: String) throws(StoreError) {
    let options = Options.existing
    let directory = try StoreDirectory(
      path: path, allowsUntrusted: options.allowsUntrustedDirectory, makesDirectory: false)
    try StoreOpener(directory: directory, options: options, counts: StoreCounters()).inspectDataFile()
    try directory.checkWritable()
    let isAlone = try directory.lockForOpening(timeout: options.openTimeout, createsFiles: false)
    directory.findGeneration()
    guard !isAlone, let log = RemovalLog.open(path: directory.removalLogPath) else {
      // A process that is alone must first recover the log after a power cut.
      throw .busy(path, reason: "its data could not be opened", remedy: "Try again")
    }
    try ProcessLimits.checkFileSize(directory: path, of: "the removal log", byteCount: log.byteCount)
    try directory.finishOpening()
    do throws(RemovalLog.Failure) {
      try log.append([removal], timeout: options.stallTimeout) {}
    } catch {
      switch error {
      case .busy:
        throw .busy(path, reason: "the removal log is full, and no process applies its removals")
      case .system(let number):
        throw .unusable(path, doing: "writing to \(RemovalLog.name)", number)
      }
    }
    // The next generation does not have the removal.
    guard directory.isGenerationInUse else {
      throw .busy(path, reason: "its data was replaced in the meantime", remedy: "Try again")
    }
  }

  // MARK: For holders of copies

  /// The present point in the order of removals, for ``effectOfRemovals(on:storedAt:fields:since:)``. Costs
  /// a nanosecond.
  public var removalToken: RemovalToken { remover.token }

  /// Returns the number that a key space has in its keys if its record is stored with a token.
  ///
  /// Two processes that make the record at once, with no removal between, make the same one. A removal ends the use of
  /// all numbers before it: it covers a record with an earlier token, and a later token has another number. This holds
  /// only if each removal is logged. A cache without other users does not log the removal of a URL of which it finds
  /// nothing, not even the record of a space, which may have been evicted before the responses in the space. So its
  /// numbers are random. When another process opens the directory, no response has one of the numbers that follow.
  package func keySpaceNumber(at token: RemovalToken) -> UInt64 {
    guard mayHaveOtherUsers, !context.isForked, let removal = context.removalNumber(in: token) else {
      return .random(in: .min ... .max)
    }
    return context.keySpaceSeed &+ removal
  }

  /// The effect of the removals of all processes since `token` on a copy. `token` is moved to now.
  ///
  /// A memory tier calls this before it serves the copy. Costs a nanosecond while nothing is removed, because the
  /// closures are then not called.
  ///
  /// - Parameters:
  ///   - key: The cache key of the copy.
  ///   - storedAt: When the response was last updated or stored. Another process may have updated the record since the
  ///     copy was read. To be sure, pass the distant future, and look the response up again if that is covered.
  ///   - fields: Returns the fields of the response.
  ///   - token: The removals that the caller knows.
  public func effectOfRemovals(
    on key: @autoclosure () -> RequestKey, storedAt: @autoclosure () -> Date, fields: () -> HeaderFields?,
    since token: inout RemovalToken
  ) -> RemovalEffect {
    remover.effectOfRemovals(since: &token, on: key(), storedAt: storedAt(), fields: fields)
  }

  /// The effect that the removals of all processes since `token` may have on a response in flight, of which only the
  /// key is known. `token` is moved to now.
  package func possibleEffectOfRemovals(on key: RequestKey, since token: inout RemovalToken) -> RemovalEffect {
    // In flight, so it is newer than any date, and its fields are unknown.
    remover.effectOfRemovals(since: &token, on: key, storedAt: .distantFuture) { nil }
  }
}
