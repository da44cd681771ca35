import Glibc
import LMDB

/// The stores that this process has open, by directory: LMDB must not have one file open twice in a process.
final class StoreRegistry: Sendable {
  static let shared = StoreRegistry()

  private struct Entry {
    weak var store: ResponseStore?
    /// The store's. In its deinit, when the weak reference is nil already, it tells whether all is written.
    let queue: Monitor<WriteQueue>
    /// A forked child inherits the table, but the stores in it are its parent's.
    var processID: Int32
  }

  private let stores = Monitor<[StoreDirectory.Identity: Entry]>([:])
  /// The directories that a thread of this process is opening: such openings take turns, and no others wait for them, as one may wait
  /// for another process. With the process, as a forked child has the table, and not the threads.
  private let opening = Monitor<[StoreDirectory.Identity: Int32]>([:])

  private init() {
    // Whoever stores and exits expects to find it again.
    atexit {
      for store in StoreRegistry.shared.openStores() { store.closeNow(as: .exiting) }
    }
  }

  private func openStores() -> [ResponseStore] {
    let processID = getpid()
    return stores.withLock { $0.values.compactMap { $0.processID == processID ? $0.store : nil } }
  }

  /// - Parameter givenUp: A store of the directory that was given up; it may have stood in another one that was there before.
  func open(
    directory path: String, options: ResponseStore.Options, inPlaceOf givenUp: ResponseStore? = nil
  ) throws(StoreError) -> ResponseStore {
    let directory = try StoreDirectory(
      path: path, allowsUntrusted: options.allowsUntrustedDirectory, makesDirectory: !options.opensExistingOnly)
    let processID = getpid()
    _ = opening.wait { opening -> Bool? in
      if opening[directory.identity] == processID { return nil }
      opening[directory.identity] = processID
      return true
    }
    defer { opening.update { $0[directory.identity] = nil } }
    var counts = givenUp?.counts
    try givenUp.map { givenUp throws(StoreError) in try letGo(of: givenUp) }
    let existing = existing(directory.identity, timeout: options.openTimeout)
    if let store = existing, store.isLost {
      counts = store.counts
      try letGo(of: store)
    } else if let store = existing {
      guard store.options.runsInBackground || !options.runsInBackground else {
        store.close()
        throw StoreError(
          .busy, directory: path, reason: "this process has it open without threads, for a look",
          remedy: "Close that before a cache is opened on the directory")
      }
      if let givenUp { store.takeOverLoss(of: givenUp) }
      if !options.opensExistingOnly { store.capacityByteCount = options.capacityByteCount }
      return store
    }
    let store = try StoreOpening(
      directory: directory, options: options, counts: counts ?? StatisticsCounters()
    ).open()
    if let before = existing ?? givenUp { store.takeOverLoss(of: before) }
    try store.startThreads()
    stores.withLock { $0[directory.identity] = Entry(store: store, queue: store.queue, processID: processID) }
    return store
  }

  /// Closes a store that was given up.
  private func letGo(of store: ResponseStore) throws(StoreError) {
    guard !store.letGo() else { return }
    throw StoreError(
      .busy, directory: store.directory,
      reason: "the store was given up, and this process is still at work in its data",
      remedy: "Try again when what reads or writes it has ended")
  }

  private func existing(_ identity: StoreDirectory.Identity, timeout: Duration) -> ResponseStore? {
    guard let entry = stores.withLock({ $0[identity] }), entry.processID == getpid() else { return nil }
    if let store = entry.store {
      let isOpen = store.openCount.withLock { count -> Bool in
        guard count > 0 else { return false }
        count += 1
        return true
      }
      if isOpen { return store }
    }
    // Another thread is closing it, or has let go of the last reference: let it write what is queued first.
    _ = entry.queue.wait(timeout: timeout) { $0.isClosed ? true : nil }
    return nil
  }

  func forget(_ store: ResponseStore) {
    stores.withLock { stores in
      let identity = store.storeDirectory.identity
      // A newer store of the directory must stay.
      if stores[identity]?.queue === store.queue { stores[identity] = nil }
    }
  }
}
