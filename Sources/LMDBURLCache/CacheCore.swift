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
  /// Where removals by others are seen, and, with a disk capacity, what is stored.
  /// Set by the initializer, when a disk capacity is first given, or when a store appears in the directory; replaced when
  /// the store was given up and opened anew.
  let openStore = StoreReference()
  private let diskLimit: Atomic<Int>
  /// Changes of the disk capacity, and opening anew, take turns.
  let resizing = Mutex<Void>(())
  let recovery = Mutex(Recovery())
  /// Up to where ``flush()`` has told what was lost.
  let flushMark: Atomic<UInt64>
  /// Whether there is a store to be opened, which has not been done yet or is not possible now. Until it is open, nothing is
  /// kept: removals by other processes could not be seen.
  let isWaitingForDisk: Atomic<Bool>
  /// Whether something was to be removed meanwhile.
  let hasMissedRemoval = Atomic(false)
  /// The data file that cannot be opened, and next to which the cache therefore works in memory alone.
  let unusableFile: Mutex<DataFileMark?>

  struct Settings: Sendable {
    var minCacheInterval: Double = 300
    var ignoresMemoryOnlyPolicy = false
  }

  /// - Parameter failure: Why the directory could not be opened.
  init(
    directory: String?, store: ResponseStore?, failure: StoreError? = nil, memoryCapacity: Int, diskCapacity: Int,
    options: LMDBURLCache.Options
  ) {
    self.directory = directory
    self.options = options
    memory = MemoryTier(capacityByteCount: memoryCapacity)
    settings = Mutex(Settings())
    diskLimit = Atomic(diskCapacity)
    flushMark = Atomic(store?.acceptedNumber ?? 0)
    isWaitingForDisk = Atomic(failure?.isInUseByOthers == true)
    unusableFile = Mutex(failure.flatMap { DataFileMark(directory: directory, leftAloneAfter: $0) })
    if let failure {
      options.log(Self.line(on: failure, usesDisk: diskCapacity >= ResponseStore.smallestCapacityByteCount))
      recovery.withLock { $0.hasLoggedFailure = failure.isInUseByOthers }
    }
    if let store { openStore.set(store) }
  }

  /// The store, while the disk may be used.
  var store: ResponseStore? { usesDisk ? openStore.load() : nil }

  var usesDisk: Bool { diskCapacity >= ResponseStore.smallestCapacityByteCount }

  var now: Date { options.clock() }

  // MARK: Capacity

  var diskCapacity: Int { diskLimit.load(ordering: .relaxed) }

  /// The largest body that is kept for a session: 5% of the larger capacity, as Apple's loading system has it, within the
  /// limit of the options.
  var largestSessionBodyByteCount: Int {
    min(max(diskCapacity, memory.capacityByteCount) / 20, max(0, options.maximumStoredBodyByteCount))
  }

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
      if isUsable { setCapacity(capacity, of: store) } else { emptyDisk(store) }
      recoverIfGivenUp(store)
    } else if isUsable, let directory {
      do {
        try openDisk(directory)
      } catch {
        options.log(Self.line(on: error, usesDisk: true))
        guard error.isInUseByOthers else { return }
        isWaitingForDisk.store(true, ordering: .sequentiallyConsistent)
        memory.removeAll { _ in true }
      }
    }
  }

  private func setCapacity(_ capacity: Int, of store: ResponseStore) {
    store.capacityByteCount = capacity
    // One that could not be applied, of which the log says why, leaves the former one in force.
    guard !store.isGivenUp, !store.isApplyingCapacity else { return }
    diskLimit.store(store.capacityByteCount, ordering: .relaxed)
  }

  /// Removes everything from the store and leaves memory: what is there passes this removal, unless another comes
  /// between.
  private func emptyDisk(_ store: ResponseStore) {
    let before = store.snapshot
    memory.forEach { _ = use($0) }
    var after = before
    store.remove(.everything, movingPast: &after)
    memory.forEach { entry in
      _ = entry.removalToken.compareExchange(expected: before, desired: after, ordering: .relaxed)
    }
  }

  // MARK: Removal tokens

  /// The token of responses that were asked for or kept while no store was open. As soon as there is one, they count as
  /// removed: what was removed before from a store that appeared meanwhile is not known.
  static let tokenWithoutStore = RemovalToken.max

  /// The present point in the order of removals by all processes.
  var removalToken: RemovalToken {
    if let token = openStore.use({ $0.snapshot }) { return token }
    _ = worksAlone()
    return Self.tokenWithoutStore
  }

  /// Whether a removal since a token may cover what comes from a URL now. The token is moved to now.
  func mayBeRemoved(_ url: URL?, _ partition: String, since token: inout RemovalToken) -> Bool {
    openStore.load()?.mayBeRemoved(url, partition: partition, since: &token) ?? !worksAlone()
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
    guard let store else {
      openStore.use { recoverIfGivenUp($0) }
      openDiskIfWaiting()
      return nil
    }
    // Both are read before the disk, so that whatever happens meanwhile shows.
    let token = store.snapshot
    let changeCount = usesMemory ? memory.changeCount(for: key) : 0
    guard let stored = store.lookup(key, where: matches) else {
      recoverIfGivenUp(store)
      return nil
    }
    let response = StoredURLResponse(CachedRecord(stored, key: key), url: url)
    if usesMemory, !stored.hasOtherVariants {
      // With several variants, only the disk knows which of those that match is the newest.
      memory.insertCopy(
        MemoryTier.Entry(response, useDigest: store.useDigest(of: key), removalToken: token),
        unlessChangedSince: changeCount)
    }
    return response
  }

  /// Notes that what memory has is used; false if a removal, by whatever process, covers it.
  func use(_ entry: MemoryTier.Entry) -> Bool {
    openStore.use { store in
      let known = entry.removalToken.load(ordering: .relaxed)
      var token = known
      // Without a copy of the record, each part of which would count a reference; mostly the record is not even looked at.
      let wasRemoved = store.wasRemoved(
        entry.response.record.key, storedAt: entry.response.record.storedAt,
        groups: { CacheGroups.groups(of: entry.response.record.fields) }, isOnItsOwn: !usesDisk, since: &token)
      if wasRemoved {
        // Its token stays: others may have found the entry, too, and are still to compare.
        memory.remove(entry)
        return false
      }
      if token != known { entry.removalToken.store(token, ordering: .relaxed) }
      // Eviction from disk is to know what is used, by whatever tier.
      if entry.isOnDisk, usesDisk { store.noteUse(of: entry.useDigest) }
      return true
    } ?? worksAlone()
  }

  /// How many variants are stored for a key.
  func variantCount(_ key: RequestKey) -> Int {
    var seen = Set(memory.variants(of: key))
    store?.forEachVariant(of: key) { seen.insert($0) }
    return seen.count
  }

  // MARK: Keeping

  /// Keeps a response in memory and, where `reachesDisk`, in the store; not at all if `isVoid` says so at the last moment.
  ///
  /// The store gets it first. What a lookup meanwhile loads into memory is older at most until memory gets it, too; and
  /// where memory does not keep it, the store tells. No lock is held across the two: what a removal covers shows by the
  /// removal token that both have.
  ///
  /// - Parameters:
  ///   - token: Of what an origin was asked for, taken before; nil for a response that exists only now.
  ///   - waitsForRoom: Whether the thread may block where the store's queue is full.
  func keep(
    _ response: StoredURLResponse, reachesDisk: Bool, askedAt token: RemovalToken? = nil, waitsForRoom: Bool = true,
    unless isVoid: () -> Bool = { false }
  ) {
    guard !isVoid() else { return }
    let record = response.record
    let token = token ?? removalToken
    guard let store else {
      guard openStore.use({ _ in true }) ?? worksAlone() else { return }
      let entry = MemoryTier.Entry(response, useDigest: nil, removalToken: token)
      return memory.insert(entry, unlessChangedSince: nil, unless: isVoid)
    }
    let changeCount = memory.changeCount(for: record.key)
    var isOnDisk = false
    if reachesDisk {
      isOnDisk = store.store(record.newResponse, askedAt: token, waitsForRoom: waitsForRoom)
    } else {
      // What lies on disk is older, and must not come back once memory lets go of this one.
      store.discard(record.newResponse)
    }
    let entry = MemoryTier.Entry(
      response, useDigest: isOnDisk ? store.useDigest(of: record.key) : nil, removalToken: token)
    memory.insert(entry, unlessChangedSince: changeCount, unless: isVoid)
    recoverIfGivenUp(store)
  }

  /// Keeps nothing of a response, and lets nothing older take its place.
  func discard(_ record: CachedRecord) {
    store?.discard(record.newResponse)
    memory.remove(record.key)
  }

  /// Gives a response other fields and facts, after a 304, in whatever tier has it; nothing happens if it is gone, or replaced.
  /// Does not wait for room in the store's queue.
  func update(_ old: StoredURLResponse, fields: HTTPFields, facts: FreshnessFacts) {
    let record = old.record
    let vary = record.vary
    var inMemory = memory.find(record.key) { $0 == vary }
    if inMemory?.response.record.facts != record.facts { inMemory = nil }
    var onDisk = store?.lookup(record.key) { $0 == vary }
    if onDisk?.facts != record.facts { onDisk = nil }
    // The store first, as in ``keep(_:reachesDisk:askedAt:waitsForRoom:unless:)``.
    if let onDisk { store?.update(onDisk, fields: fields, facts: facts, waitsForRoom: false) }
    guard let inMemory else {
      // A lookup may be about to put the old fields there.
      if onDisk != nil { memory.remove(record.key) }
      return
    }
    let updated = StoredURLResponse(
      record.updated(fields: fields, facts: facts), userInfo: old.userInfo, storagePolicy: old.storagePolicy)
    // With the token of the old one: what has covered that since covers this one, too.
    memory.replace(
      inMemory,
      with: MemoryTier.Entry(
        updated, useDigest: onDisk == nil ? nil : store?.useDigest(of: record.key),
        removalToken: inMemory.removalToken.load(ordering: .relaxed)))
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

  /// Removes from both tiers. The store goes first: once it has the removal down, no copy in memory that is covered is
  /// served any more, and memory only gives the bytes back.
  func remove(_ isCovered: (CachedRecord) -> Bool, fromStore: (ResponseStore) -> Void) {
    removeFromStore(fromStore)
    memory.removeAll(where: isCovered)
  }

  func remove(_ key: RequestKey) {
    var token = removalToken
    remove(key, movingPast: &token)
  }

  /// - Parameter token: Of what is not to be covered; it is moved past the removal.
  func remove(_ key: RequestKey, movingPast token: inout RemovalToken) {
    removeFromStore { $0.remove(.key(key.bytes), movingPast: &token) }
    memory.remove(key)
  }

  /// Whether anything is stored for a key, or may be: in a store that was given up nothing is found, but others may
  /// have begun anew.
  func holds(_ key: RequestKey) -> Bool {
    if !memory.variants(of: key).isEmpty { return true }
    guard let store = openStore.load() else { return !worksAlone() }
    var isHeld = store.isGivenUp
    store.forEachVariant(of: key) { _ in isHeld = true }
    return isHeld
  }

  func flush() throws {
    guard let store = openStore.load() else { return }
    defer { recoverIfGivenUp(store) }
    try store.flush(since: flushMark)
  }
}
