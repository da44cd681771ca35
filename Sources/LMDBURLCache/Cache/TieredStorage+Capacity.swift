import ResponseStore
import Synchronization

/// The capacity of the disk tier.
extension TieredStorage {
  var diskCapacity: Int { diskLimit.load(ordering: .relaxed) }

  /// The maximum size of a body that is stored for a session.
  ///
  /// It is 5% of the larger capacity, as in Apple's loading system, but at most the maximum in the options.
  var maximumSessionBodyByteCount: Int {
    min(max(diskCapacity, memory.capacityByteCount) / 20, max(0, options.maximumStoredBodyByteCount))
  }

  /// The size of the directory's files on disk in bytes, with or without a disk tier.
  var diskByteCount: Int { openStore.load()?.diskByteCount ?? 0 }

  /// Sets the disk capacity. A value below the store's minimum empties the disk tier and keeps the memory tier.
  func setDiskCapacity(_ capacity: Int) {
    resizing.withLock { _ in applyDiskCapacity(capacity) }
  }

  private func applyDiskCapacity(_ capacity: Int) {
    diskLimit.store(capacity, ordering: .relaxed)
    let isUsable = capacity >= ResponseStore.minimumCapacityByteCount
    if let store = openStore.load() {
      if isUsable { setCapacity(capacity, of: store) } else { emptyDisk(store) }
      reopenIfFailed(store)
    } else if isUsable, let directory {
      do {
        try openStore(in: directory)
      } catch {
        options.log(Self.line(on: error, usesDisk: true))
        guard error.isInUseByOthers else { return }
        availability.withLock { $0.beginWaiting() }
        memory.removeAll { _ in true }
      }
    }
  }

  private func setCapacity(_ capacity: Int, of store: ResponseStore) {
    store.capacityByteCount = capacity
    // If the capacity could not be applied, the previous one remains in effect, and the log has the reason.
    guard !store.hasFailed, !store.isApplyingCapacity else { return }
    diskLimit.store(store.capacityByteCount, ordering: .relaxed)
  }

  /// Removes everything from the store and keeps the memory tier.
  ///
  /// The tokens of entries in memory are moved past this removal, unless another removal comes between.
  private func emptyDisk(_ store: ResponseStore) {
    let before = store.removalToken
    memory.forEach { _ = use($0) }
    var after = before
    store.remove(.everything, movingPast: &after)
    memory.forEach { entry in
      _ = entry.removalToken.compareExchange(expected: before, desired: after, ordering: .relaxed)
    }
  }
}
