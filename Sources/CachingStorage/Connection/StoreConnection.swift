import CacheActivity
import CacheModel
import FoundationEssentials
import ResponseStore
import Synchronization

/// The connection of a cache with the store of its directory: opens the store, again after it has failed, and sets its
/// capacity.
///
/// The store is the disk tier if there is a disk capacity. Without one, it still reports removals by other processes.
package final class StoreConnection: Sendable {
  let options: ResponseCache.Options
  /// The directory of the store, which may not exist yet.
  package let directory: String
  /// The memory tier, whose responses are removed when a store appears.
  let memory: MemoryTier
  /// The open store. Set by the initializer, when a disk capacity is first set, or when a store appears in the
  /// directory. Replaced after it has failed.
  package let openStore = AtomicStoreReference()
  /// The counters of the directory, once a store is open.
  let activity = ActivityReference()
  /// When the store is opened.
  package let state: Mutex<ConnectionState>
  /// The lock for changes of the disk capacity and for opening.
  let resizing = Mutex<Void>(())
  private let diskLimit: Atomic<Int>
  /// The number of the write up to which ``flush()`` has reported losses.
  let flushMark: Atomic<UInt64>
  private let forwarding = Mutex<EventForwarding?>(nil)

  /// - Parameters:
  ///   - store: The store of the directory; nil if there is none.
  ///   - failure: The error because of which the directory could not be opened.
  init(
    directory: String, store: ResponseStore?, failure: StoreError?, memory: MemoryTier, diskCapacity: Int,
    options: ResponseCache.Options
  ) {
    self.directory = directory
    self.memory = memory
    self.options = options
    diskLimit = Atomic(diskCapacity)
    flushMark = Atomic(store?.acceptedNumber ?? 0)
    let isInUseByOthers = failure?.isInUseByOthers == true
    let unusableFile = failure.flatMap { DataFileMark(directory: directory, leftAloneAfter: $0) }
    state = Mutex(
      ConnectionState(
        phase: isInUseByOthers ? .waiting : .memoryOnly(unusableFile: unusableFile), hasLoggedFailure: isInUseByOthers))
    if let failure { options.log(Self.line(on: failure, usesDisk: usesDisk)) }
    if let store {
      connect(store)
      publish(store)
    }
  }

  /// Connects the memory tier, the counters and the events with a store that was just opened.
  ///
  /// From now on, the store drops copies in the memory tier when another cache of this process writes.
  func connect(_ store: ResponseStore) {
    store.add(memory)
    activity.use(store.activity.file)
    forwarding.withLock { $0 = EventForwarding(from: store.activity.observers, to: activity.observers) }
  }

  /// Makes a connected store the open one. Does nothing and returns false if a removal was missed in the meantime.
  @discardableResult
  func publish(_ store: ResponseStore) -> Bool {
    state.withLock { state in
      guard !state.hasMissedRemoval else { return false }
      openStore.set(store)
      state.phase = .open
      return true
    }
  }

  /// The store, if there is a disk tier.
  var store: ResponseStore? { usesDisk ? openStore.load() : nil }

  var usesDisk: Bool { diskCapacity >= ResponseStore.minimumCapacityByteCount }

  // MARK: Removals

  /// The token of responses that were requested or stored while no store was open.
  ///
  /// They count as removed when a store is opened, because earlier removals from that store are not known.
  static let tokenWithoutStore = RemovalToken.max

  /// The present position in the order of removals by all processes.
  package var removalToken: RemovalToken {
    if let token = openStore.use({ $0.removalToken }) { return token }
    _ = checkMayUseMemoryOnly()
    return Self.tokenWithoutStore
  }

  /// Returns the number that a key space has in its keys if its record is stored with a token. Random without a store.
  package func keySpaceNumber(at token: RemovalToken) -> UInt64 {
    openStore.use { $0.keySpaceNumber(at: token) } ?? .random(in: .min ... .max)
  }

  /// Returns the effect that removals since a token may have on a response with a key that arrives now.
  ///
  /// Advances the token to the present.
  package func possibleEffectOfRemovals(on key: RequestKey, since token: inout RemovalToken) -> RemovalEffect {
    openStore.use { $0.possibleEffectOfRemovals(on: key, since: &token) }
      ?? (checkMayUseMemoryOnly() ? .none : .removed)
  }

  // MARK: Other machines

  /// The identity of the store for other machines; nil without a usable store.
  var storeID: UInt64? {
    guard let store = openStore.load() else {
      _ = checkMayUseMemoryOnly()
      return nil
    }
    guard !store.hasFailed else {
      reopenIfFailed(store)
      return nil
    }
    return store.ownerID
  }

  /// Applies purges of other machines. Returns whether they are durable.
  func applyRemovals(_ removals: [Removal]) -> Bool {
    guard let store = openStore.load() else { return false }
    let isDone = store.removeDurably(removals) != nil && !store.hasFailed
    reopenIfFailed(store)
    return isDone
  }

  // MARK: Capacity

  /// The disk capacity that was set for this cache.
  var diskCapacity: Int { diskLimit.load(ordering: .relaxed) }

  /// The disk capacity of the directory, which another cache may have set; that of this cache if it has no disk tier.
  package var directoryCapacity: Int {
    guard let store, !store.hasFailed else { return diskCapacity }
    return store.capacityByteCount
  }

  /// The size of the directory's files on disk in bytes, with or without a disk tier.
  package var diskByteCount: Int { openStore.load()?.diskByteCount ?? 0 }

  /// Sets the disk capacity.
  ///
  /// - Parameter empty: Empties the store. Called for a capacity below the store's minimum.
  func setDiskCapacity(_ capacity: Int, empty: (ResponseStore) -> Void) {
    resizing.withLock { _ in
      diskLimit.store(capacity, ordering: .relaxed)
      if let store = openStore.load() {
        if usesDisk { setCapacity(capacity, of: store) } else { empty(store) }
        reopenIfFailed(store)
      } else if usesDisk {
        do throws(StoreError) {
          try open()
        } catch {
          options.log(Self.line(on: error, usesDisk: true))
          guard error.isInUseByOthers else { return }
          beginWaiting()
        }
      }
    }
  }

  private func setCapacity(_ capacity: Int, of store: ResponseStore) {
    store.capacityByteCount = capacity
    // If the capacity could not be applied, the previous one remains in effect, and the log has the reason.
    guard !store.hasFailed, !store.isApplyingCapacity else { return }
    diskLimit.store(store.capacityByteCount, ordering: .relaxed)
  }

  /// Makes accepted writes durable.
  ///
  /// - Throws: ``StoreError`` if a write since the last call was lost or could not be made durable.
  package func flush() throws {
    guard let store = openStore.load() else { return }
    defer { reopenIfFailed(store) }
    try store.flush(since: flushMark)
  }
}
