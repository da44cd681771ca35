import CacheActivity
import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization

/// The memory tier and the disk tier of a cache, and the rules that select between them.
///
/// ``ResponseCache`` is its interface.
package final class TieredStorage: Sendable {
  package let options: ResponseCache.Options
  package let memory: MemoryTier
  /// The connection with the store, which is the disk tier if there is a disk capacity.
  package let connection: StoreConnection
  /// The settings that can change.
  package let settings = Mutex(Settings())
  private let loggedRefusals = Mutex<Set<String>>([])
  /// Whether this cache has stored a response with No-Vary-Search, in any tier.
  let hasStoredEquivalents = Atomic<Bool>(false)
  /// The counters of the directory, once a store is open.
  package let activity: ActivityReference
  /// The bond with other machines; nil without any.
  package let membership: (any FleetMembership)?
  /// The lease of the machine. Without a valid lease, stored responses are validated before use.
  package let lease: MachineLease?

  /// Settings that can change while the cache is in use.
  package struct Settings: Sendable {
    /// The minimum lifetime in seconds for the disk tier.
    package var minCacheInterval: Double = 300
    /// Whether responses for memory only may also be stored on disk.
    package var ignoresMemoryOnlyPolicy = false
  }

  init(_ connection: StoreConnection, membership: (any FleetMembership)? = nil) {
    self.connection = connection
    self.membership = membership
    lease = membership?.lease
    options = connection.options
    memory = connection.memory
    activity = connection.activity
    if options.recordsMode { activity.record(isOfSharedCache: options.caching.mode == .shared) }
  }

  deinit {
    // Before the store is released, whose end the fleet would otherwise see as a failure of this machine.
    membership?.leave()
  }

  /// The store, if there is a disk tier.
  package var store: ResponseStore? { connection.store }

  package var now: Date { options.clock() }

  // MARK: Lookups

  /// The maximum size of a body that a lookup copies out of the store. Larger bodies are read when they are wanted.
  package static let maximumCopiedBodyByteCount = 1 << 20

  /// Returns the newest response for a key that `matches` accepts, fresh or stale.
  ///
  /// - Parameters:
  ///   - limit: The maximum size of a body that is copied out of the store; nil for no maximum. Only a copied body
  ///     gets into the memory tier.
  ///   - isCounted: Whether the lookup is for a response, and counts in the statistics.
  package func lookup(
    _ key: RequestKey, leavingBodiesBeyond limit: Int? = maximumCopiedBodyByteCount, isCounted: Bool = true,
    where matches: (VaryKey) -> Bool
  ) -> CacheEntry? {
    let usesMemory = memory.capacityByteCount > 0
    if usesMemory, let entry = memory.lookup(key, where: matches), let response = use(entry) {
      if isCounted { activity.countMemoryLookup() }
      response.recordMemoryHit()
      return response
    }
    guard let store else {
      connection.openStore.load().map { connection.reopenIfFailed($0) }
      connection.openIfWaiting()
      return nil
    }
    // Read both before the disk, so that concurrent changes are noticed.
    let token = store.removalToken
    let changeCount = usesMemory ? memory.changeCount(for: key) : 0
    guard let stored = store.lookup(key, leavingBodiesBeyond: limit, isCounted: isCounted, where: matches) else {
      connection.reopenIfFailed(store)
      return nil
    }
    let response = CacheEntry(stored, key: key)
    if usesMemory, !stored.hasOtherVariants, stored.storedBody == nil {
      // Among several variants, only the disk knows which matching one is the newest.
      response.setPosition(token, useDigest: store.useDigest(of: key))
      memory.insertCopy(response, unlessChangedSince: changeCount)
    }
    return response
  }

  /// Compares an entry in the memory tier with new removals, records its use, and returns its response.
  ///
  /// Nil if a removal by any process covers the entry. The store may still have the response, as stale or not covered:
  /// any removal by date or tag covers an entry whose response is also in the store, because another process may have
  /// updated the record. An entry that is only in memory is stale after a soft purge.
  package func use(_ entry: MemoryTier.Entry) -> CacheEntry? {
    connection.openStore.use { store -> CacheEntry? in
      let known = entry.removalToken.load(ordering: .relaxed)
      var token = known
      // Usually the entry is not read at all.
      let effect = store.effectOfRemovals(
        on: entry.key, storedAt: entry.isOnDisk ? .distantFuture : entry.updatedAt,
        fields: { entry.isOnDisk ? nil : entry.fields }, since: &token)
      switch effect {
      case .none:
        if token != known { entry.removalToken.store(token, ordering: .relaxed) }
      case .stale(let date) where !entry.isOnDisk:
        // Keep the token of the old entry: other lookups may have found it, too, and must still compare it.
        let stale = entry.softPurged(at: date, removalToken: token)
        memory.exchange(entry, for: stale)
        return stale
      case .stale, .removed:
        // Keep the token of the entry: other lookups may have found it, too, and must still compare it.
        memory.remove(entry)
        return nil
      }
      // Eviction from disk considers uses in both tiers.
      let digest = entry.useDigest.load(ordering: .relaxed)
      if digest != 0, connection.usesDisk { store.recordUse(of: digest) }
      return entry
    } ?? (connection.checkMayUseMemoryOnly() ? entry : nil)
  }

  /// Returns the number of variants stored for a key.
  package func variantCount(_ key: RequestKey) -> Int {
    var seen = Set(memory.variants(of: key))
    store?.forEachVariant(of: key) { seen.insert($0) }
    return seen.count
  }

  // MARK: Storing

  /// Stores a response in memory and, if `reachesDisk` is true, on disk.
  ///
  /// The store receives the response first. A concurrent lookup can put the older response into memory, but only until
  /// this method inserts the new one. If the memory tier does not accept the new one, lookups find it in the store. No
  /// lock is held across both tiers, because both compare the removal token.
  ///
  /// - Parameters:
  ///   - token: The removal token from before the origin was asked; nil for a response that a caller stores now.
  ///   - waitsForSpace: Whether the call may block while the write queue is full.
  ///   - isRevoked: Whether the permit to store the response was revoked. Checked under the memory tier's lock.
  /// - Returns: Whether a tier has accepted the response.
  @discardableResult
  package func insert(
    _ response: CacheEntry, reachesDisk: Bool, askedAt token: RemovalToken? = nil,
    waitsForSpace: Bool = true, unless isRevoked: () -> Bool = { false }
  ) -> StorageOutcome {
    let token = token ?? connection.removalToken
    // Before a lookup can find it.
    if !hasStoredEquivalents.load(ordering: .relaxed), response.key.isSearchSpace {
      hasStoredEquivalents.store(true, ordering: .releasing)
    }
    guard let store else {
      discardInOtherCaches(response)
      guard connection.openStore.use({ _ in true }) ?? connection.checkMayUseMemoryOnly() else {
        return .notStored(.writeDropped)
      }
      response.setPosition(token, useDigest: nil)
      let isInMemory = memory.insert(response, unlessChangedSince: nil, unless: isRevoked)
      return isInMemory ? .storedInMemory : .notStored(memoryRefusal(of: response) ?? .writeDropped)
    }
    let changeCount = memory.changeCount(for: response.key)
    var outcome = StorageOutcome.notStored(.memoryOnly)
    if reachesDisk {
      outcome = store.store(
        response.cacheable, for: response.key, attachment: response.attachment, askedAt: token,
        waitsForSpace: waitsForSpace,
        by: memory)
    } else {
      // Remove the older copy from disk; otherwise it would reappear after the memory tier evicts the new response.
      store.discard(response.cacheable, for: response.key, by: memory)
    }
    if store.hasFailed { discardInOtherCaches(response) }
    response.setPosition(token, useDigest: outcome == .stored ? store.useDigest(of: response.key) : nil)
    let isInMemory = memory.insert(response, unlessChangedSince: changeCount, unless: isRevoked)
    connection.reopenIfFailed(store)
    guard case .notStored(let refusal) = outcome else { return outcome }
    if refusal.concernsSize {
      // The store has logged it.
      loggedRefusals.withLock { _ = $0.insert(refusal.id) }
      if isInMemory { activity.noteRefusal(refusal.id, of: response.key) }
    }
    if isInMemory { return .storedInMemory }
    return reachesDisk ? outcome : .notStored(memoryRefusal(of: response) ?? refusal)
  }

  /// Stores a response on disk whose body was written while it arrived.
  package func insert(_ response: CacheEntry, with body: IncomingBody, askedAt token: RemovalToken?) -> StorageOutcome {
    if !hasStoredEquivalents.load(ordering: .relaxed), response.key.isSearchSpace {
      hasStoredEquivalents.store(true, ordering: .releasing)
    }
    let outcome = body.store(
      response.cacheable, for: response.key, attachment: response.attachment,
      askedAt: token ?? connection.removalToken, by: memory)
    // The memory tier may have the response that this one replaces.
    memory.remove(response.key)
    if outcome != .stored { discardInOtherCaches(response) }
    return outcome
  }

  /// The store, unless it has failed.
  var usableStore: ResponseStore? {
    guard let store, !store.hasFailed else { return nil }
    return store
  }

  /// The rule for a response that only the memory tier could have; nil if there is no such tier, or if the response is
  /// not larger than the tier.
  private func memoryRefusal(of entry: MemoryTier.Entry) -> Rule? {
    let limit = memory.capacityByteCount
    guard limit > 0, entry.memoryByteCount > limit else { return nil }
    let bodyLimit = limit - (entry.memoryByteCount - entry.bodyByteCount)
    return bodyLimit > 0 ? .bodyTooLarge(limit: bodyLimit) : .recordTooLarge(limit: limit)
  }

  /// Counts a response that a caller stores and that is not stored.
  package func refuse(_ rule: Rule, of key: RequestKey) {
    activity.countRefusal(rule.id, of: key)
    if rule.concernsSize { reportSizeRefusal(rule) }
  }

  /// Logs once for each rule that a response was not stored because of its size.
  package func reportSizeRefusal(_ rule: Rule) {
    guard loggedRefusals.withLock({ $0.insert(rule.id).inserted }) else { return }
    options.log(
      "LMDBURLCache: A response was not stored: \(rule.summary). More of them are only counted "
        + "(\(connection.directory))")
  }

  /// Removes the older responses that a response would replace, without storing it.
  package func discard(_ response: CacheEntry) {
    if let store, !store.hasFailed {
      store.discard(response.cacheable, for: response.key, by: memory)
    } else {
      discardInOtherCaches(response)
    }
    memory.remove(response.key)
  }

  /// Removes the older responses that a response replaces from the other caches of this process on the directory.
  ///
  /// Call this for a response that does not reach the store: the other caches may have opened or reopened the store.
  private func discardInOtherCaches(_ response: CacheEntry) {
    ResponseStore.discard(response.cacheable, for: response.key, inDirectory: connection.directory)
  }

  /// Replaces the fields and freshness of a stored response after a 304 (RFC 9111, section 4.3.4), in each tier.
  ///
  /// A tier in which the response was removed or replaced stays unchanged. Does not wait for space in the write queue.
  ///
  /// - Parameter token: The removal token from before the validation was sent. Soft purges after it make the updated
  ///   response stale.
  package func update(
    _ old: CacheEntry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken
  ) {
    // A response that came from the store needs no second lookup, unless a soft purge has covered it since. For a
    // response that this process stored, the lookup leaves the body in the store, because the memory tier's copy has
    // the same bytes.
    var onDisk = connection.usesDisk ? old.record : nil
    if onDisk?.freshness != old.freshness { onDisk = nil }
    if onDisk == nil { onDisk = store?.lookup(old.key, leavingBodiesBeyond: 0) { [vary = old.vary] in $0 == vary } }
    if onDisk?.freshness != old.freshness || onDisk?.bodyByteCount != old.bodyByteCount { onDisk = nil }
    // Update the store first, as in ``insert(_:reachesDisk:askedAt:waitsForSpace:unless:)``.
    if let onDisk {
      store?.update(
        onDisk, fields: fields, freshness: freshness, askedAt: token, waitsForSpace: false, by: memory)
    }
    guard memory.capacityByteCount > 0, old.storedBody == nil else {
      if onDisk != nil { memory.remove(old.key) }
      return
    }
    let updated = old.updated(fields: fields, freshness: freshness, at: now)
    // Also if the store has another state of the response, which another process may update.
    let isOnDisk = onDisk != nil || old.isOnDisk
    updated.setPosition(token, useDigest: isOnDisk ? store?.useDigest(of: old.key) : nil)
    memory.update(old, to: updated)
  }

  /// Whether a response can be used long enough for the disk tier: fresh, as in SDURLCache, or in a stale window.
  ///
  /// A response with a validator is always accepted, because it can be validated. A response that declares no lifetime
  /// is accepted, too, because the caller chose to store it. An interval of 0 accepts every response, also stale ones.
  package func meetsMinimumLifetime(_ freshness: FreshnessInfo, hasExplicitLifetime: () -> Bool) -> Bool {
    let validators: FreshnessInfo.Flags = [.strongETag, .weakETag, .lastModified]
    if !freshness.flags.isDisjoint(with: validators) { return true }
    let minimum = settings.withLock { $0.minCacheInterval }
    if minimum <= 0 || freshness.remainingUse(at: now, options: options.caching) >= minimum { return true }
    return !hasExplicitLifetime()
  }

  // MARK: Removing

  /// Removes keys from both tiers.
  package func remove(_ keys: [RequestKey]) {
    var token = connection.removalToken
    remove(keys, movingPast: &token, of: nil)
  }

  /// Removes keys from both tiers.
  ///
  /// The removal from the store comes first: when it is logged, no covered copy in memory is served. Removing the
  /// copies from the memory tier only frees their bytes.
  ///
  /// - Parameters:
  ///   - token: The token of a response that the removal does not cover; it is moved past the removal.
  ///   - responseKey: The cache key of that response; nil if there is none.
  package func remove(_ keys: [RequestKey], movingPast token: inout RemovalToken, of responseKey: RequestKey?) {
    guard !keys.isEmpty else { return }
    connection.removeFromStore { store in
      store.remove(keys.map { .key($0.bytes) }, movingPast: &token, of: responseKey)
    }
    for key in keys { memory.remove(key) }
  }

  /// Removes URLs from both tiers, with their key spaces, like ``remove(_:movingPast:of:)``.
  ///
  /// Responses in a space that stay in the memory tier are no longer found, because the record of the space is gone.
  package func remove(resources: [RequestKey], movingPast token: inout RemovalToken, of responseKey: RequestKey?) {
    guard !resources.isEmpty else { return }
    connection.removeFromStore { store in
      store.remove(resources.map { .resource($0) }, movingPast: &token, of: responseKey)
    }
    for key in resources.flatMap(\.withSpaces) { memory.remove(key) }
  }

  /// Whether other caches may be fetching responses that they will store in this directory.
  var mayHaveOtherUsers: Bool {
    connection.openStore.use { $0.mayHaveOtherUsers } ?? !connection.checkMayUseMemoryOnly()
  }

  /// Whether a response is or may be stored for a key.
  ///
  /// True if the store has failed: lookups in it find nothing, but another process may have recreated it.
  func holds(_ key: RequestKey) -> Bool {
    if !memory.variants(of: key).isEmpty { return true }
    guard let store = connection.openStore.load() else { return !connection.checkMayUseMemoryOnly() }
    var isHeld = store.hasFailed
    store.forEachVariant(of: key) { _ in isHeld = true }
    return isHeld
  }

  // MARK: Capacity

  /// The maximum size of a body that is stored.
  package var maximumSessionBodyByteCount: Int {
    Self.maximumBodyByteCount(
      diskCapacity: connection.diskCapacity, memoryCapacity: memory.capacityByteCount,
      options.maximumStoredBodyByteCount)
  }

  /// The maximum size of a body that is collected in memory before it is stored.
  ///
  /// It is 5% of the larger capacity, as in Apple's loading system.
  var maximumCollectedBodyByteCount: Int {
    min(max(connection.diskCapacity, memory.capacityByteCount) / 20, 64 << 20, maximumSessionBodyByteCount)
  }

  /// The maximum size of a body that a cache stores: a quarter of the disk capacity, or 5% of the memory capacity.
  ///
  /// - Parameter option: ``ResponseCache/Options/maximumStoredBodyByteCount``; its default without a value.
  package static func maximumBodyByteCount(
    diskCapacity: Int, memoryCapacity: Int = 0, _ option: Int = ResponseCache.Options().maximumStoredBodyByteCount
  ) -> Int {
    min(max(diskCapacity / 4, memoryCapacity / 20), max(0, option))
  }

  /// Sets the disk capacity. A value below the store's minimum empties the disk tier and keeps the memory tier.
  package func setDiskCapacity(_ capacity: Int) {
    connection.setDiskCapacity(capacity) { store in
      // The tokens of entries in memory are moved past this removal, unless another removal comes between.
      let before = store.removalToken
      memory.forEach { _ = use($0) }
      var after = before
      store.remove([.everything], movingPast: &after, of: nil)
      memory.forEach { entry in
        _ = entry.removalToken.compareExchange(expected: before, desired: after, ordering: .relaxed)
        entry.useDigest.store(0, ordering: .relaxed)
      }
    }
  }
}
