import Foundation
import HTTPCaching
import ResponseStore
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The two tiers and what decides between them. The `URLCache` subclass in front of it is Foundation's shape of the same.
final class CacheCore: Sendable {
  let options: LMDBURLCache.Options
  let memory: MemoryTier
  let settings: Mutex<Settings>
  /// Where the store is, or would be; nil if it is never to be opened.
  let directory: String?
  /// Set by the initializer, or when a disk capacity is first given; replaced when the store was given up and opened anew.
  let openStore = StoreReference()
  private let diskLimit: Atomic<Int>
  /// Changes of the disk capacity, and opening anew, take turns.
  let resizing = Mutex<Void>(())
  let recovery = Mutex(Recovery())
  /// Held while a response is kept, and for an instant by each removal before it begins: what was fetched before a removal is
  /// either kept before it, and removed by it, or finds its right to be kept gone.
  private let keeping = Mutex<Void>(())

  struct Settings: Sendable {
    var minCacheInterval: Double = 300
    var ignoresMemoryOnlyPolicy = false
  }

  init(
    directory: String?, store: ResponseStore?, memoryCapacity: Int, diskCapacity: Int, options: LMDBURLCache.Options
  ) {
    self.directory = directory
    self.options = options
    memory = MemoryTier(capacityByteCount: memoryCapacity)
    settings = Mutex(Settings())
    diskLimit = Atomic(diskCapacity)
    if let store { openStore.set(store) }
  }

  /// The store, while the disk may be used.
  var store: ResponseStore? { usesDisk ? openStore.load() : nil }

  var usesDisk: Bool { diskCapacity >= ResponseStore.smallestCapacityByteCount }

  var now: Date { options.clock() }

  // MARK: Capacity

  var diskCapacity: Int { diskLimit.load(ordering: .relaxed) }

  /// The largest body that is kept for a session: 5 % of the larger capacity, as Apple's loading system has it.
  var largestSessionBodyByteCount: Int { max(diskCapacity, memory.capacityByteCount) / 20 }

  /// The bytes that the directory's files take, whether or not the disk is in use at the moment.
  var diskByteCount: Int { openStore.load()?.diskByteCount ?? 0 }

  /// Sets the disk's share; less than the store can work with empties the disk and leaves memory alone.
  func setDiskCapacity(_ capacity: Int) {
    resizing.withLock { _ in applyDiskCapacity(capacity) }
  }

  private func applyDiskCapacity(_ capacity: Int) {
    diskLimit.store(capacity, ordering: .relaxed)
    let isUsable = capacity >= ResponseStore.smallestCapacityByteCount
    if let store = openStore.load() {
      if isUsable { store.capacityByteCount = capacity } else { store.removeAll() }
      recoverIfGivenUp(store)
    } else if isUsable, let directory {
      do {
        let store = try ResponseStore.open(
          directory: directory, options: options.storeOptions(diskCapacity: capacity))
        openStore.set(store)
      } catch {
        options.log("LMDBURLCache: The cache works in memory alone. \(error)")
      }
    }
  }

  // MARK: Finding

  /// The newest response for a key that `matches` accepts. Freshness is not looked at.
  ///
  /// - Parameter url: The URL that was asked for, if it is at hand: the response's, most likely, which need not be made anew.
  func find(
    _ key: RequestKey, url: URL? = nil, where matches: (VarySelection) -> Bool
  ) -> StoredURLResponse? {
    let usesMemory = memory.capacityByteCount > 0
    if usesMemory, let entry = memory.find(key, where: matches), use(entry) { return entry.response }
    guard let store else { return nil }
    // Both are read before the disk, so that whatever happens meanwhile shows.
    let snapshot = store.snapshot
    let changeCount = usesMemory ? memory.changeCount(for: key) : 0
    guard let stored = store.lookup(key, where: matches) else {
      recoverIfGivenUp(store)
      return nil
    }
    let response = StoredURLResponse(CachedRecord(stored, key: key), url: url, snapshot: snapshot)
    if usesMemory, !stored.hasOtherVariants {
      // With several variants, only the disk knows which of those that match is the newest.
      memory.insert(
        MemoryTier.Entry(response, isOnDisk: true, snapshot: snapshot), unlessChangedSince: changeCount)
    }
    return response
  }

  /// Notes that what memory has is used; false if a removal, by whatever process, covers it.
  private func use(_ entry: MemoryTier.Entry) -> Bool {
    guard usesDisk else { return true }
    return openStore.use { store in
      let known = entry.snapshot.load(ordering: .relaxed)
      var snapshot = known
      // Without a copy of the record, each part of which would count a reference; mostly the record is not even looked at.
      let wasRemoved = store.wasRemoved(
        entry.response.record.key, storedAt: entry.response.record.storedAt,
        groups: { CacheGroups.groups(of: entry.response.record.fields) }, since: &snapshot)
      if snapshot != known { entry.snapshot.store(snapshot, ordering: .relaxed) }
      if wasRemoved {
        memory.remove(entry)
      } else if entry.isOnDisk {
        // Eviction from disk is to know what is used, by whatever tier.
        store.noteUse(of: entry.useDigest)
      }
      return !wasRemoved
    } ?? true
  }

  /// How many variants are stored for a key.
  func variantCount(_ key: RequestKey) -> Int {
    var seen = Set(memory.variants(of: key))
    _ = store?.lookup(key) { vary in
      seen.insert(vary)
      return false
    }
    return seen.count
  }

  // MARK: Keeping

  /// Keeps a response in memory and, where `reachesDisk`, in the store; not at all if `isVoid` says so at the last moment.
  func keep(_ response: StoredURLResponse, reachesDisk: Bool, unless isVoid: () -> Bool = { false }) {
    let store = store
    let record = response.record
    if !reachesDisk, let store, store.lookup(record.key, where: { $0 == record.vary }) != nil {
      // What memory gets now is newer than what lies on disk, which must not come back once memory lets it go. First this, since
      // it covers what memory has.
      store.remove(record.key)
    }
    keeping.withLock { _ in
      guard !isVoid() else { return }
      memory.insert(
        MemoryTier.Entry(response, isOnDisk: reachesDisk && store != nil, snapshot: store?.snapshot ?? 0))
      if reachesDisk { store?.store(record.newResponse) }
    }
    if let store { recoverIfGivenUp(store) }
  }

  /// Gives a response other fields and facts, after a 304, in whatever tier has it; nothing happens if it is gone, or replaced.
  func update(_ old: StoredURLResponse, fields: HTTPFields, facts: FreshnessFacts) {
    let record = old.record
    let vary = record.vary
    let updated = StoredURLResponse(
      record.updated(fields: fields, facts: facts), userInfo: old.userInfo, storagePolicy: old.storagePolicy,
      snapshot: old.snapshot)
    let store = store
    keeping.withLock { _ in
      let inMemory = memory.find(record.key) { $0 == vary }
      var onDisk = store?.lookup(record.key) { $0 == vary }
      if onDisk?.facts != record.facts { onDisk = nil }
      guard onDisk != nil || inMemory?.response.record.facts == record.facts else { return }
      // With the old state of the store: a removal since then, by whatever process, covers the copy too.
      let snapshot = old.snapshot ?? inMemory?.snapshot.load(ordering: .relaxed) ?? 0
      memory.insert(MemoryTier.Entry(updated, isOnDisk: onDisk != nil, snapshot: snapshot))
      if let store, let onDisk { store.update(onDisk, fields: fields, facts: facts) }
    }
  }

  /// Whether a response may go to disk, by its freshness: SDURLCache's rule that spares the disk what will not live long.
  ///
  /// A response with a validator can be checked and kept; one that says nothing of its lifetime is its storer's choice.
  func livesLongEnough(_ facts: FreshnessFacts, hasExplicitLifetime: () -> Bool) -> Bool {
    let validators: FreshnessFacts.Flags = [.strongETag, .weakETag, .lastModified]
    if !facts.flags.isDisjoint(with: validators) { return true }
    if facts.remaining(at: now) >= settings.withLock({ $0.minCacheInterval }) { return true }
    return !hasExplicitLifetime()
  }

  // MARK: Removing

  /// Removes from both tiers. Memory goes first and last: a lookup between the two may bring back what the store still
  /// has, but not past the store's own removal, which every answer from memory is compared with.
  func remove(_ isCovered: (CachedRecord) -> Bool, fromStore: (ResponseStore) -> Void) {
    keeping.withLock { _ in }
    memory.removeAll(where: isCovered)
    removeFromStore(fromStore)
    memory.removeAll(where: isCovered)
  }

  func remove(_ key: RequestKey) {
    keeping.withLock { _ in }
    memory.remove(key)
    removeFromStore { $0.remove(key) }
    memory.remove(key)
  }

  /// Removes a key where something is stored for it; otherwise it costs a lookup, and the disk no sync.
  func removeIfStored(_ key: RequestKey) {
    keeping.withLock { _ in }
    guard !memory.variants(of: key).isEmpty || openStore.load().map({ mayHold(key, $0) }) == true else { return }
    remove(key)
  }

  /// In a store that was given up nothing is found, but others may have begun anew.
  private func mayHold(_ key: RequestKey, _ store: ResponseStore) -> Bool {
    store.lookup(key) != nil || store.isGivenUp
  }

  func flush() throws {
    guard let store = openStore.load() else { return }
    defer { recoverIfGivenUp(store) }
    try store.flush()
  }
}
