import Glibc
import LMDB

/// The stores that this process has open, by directory: LMDB must not have one file open twice in a process.
final class StoreRegistry: Sendable {
  static let shared = StoreRegistry()

  private struct Entry {
    weak var store: ResponseStore?
    /// The store's queue. During the store's deinit, when the weak reference is nil already, it shows whether
    /// everything is written.
    let queue: Monitor<WriteQueue>
    /// A forked child inherits the table, but the stores in it are its parent's.
    var processID: Int32
  }

  private let stores = Monitor<[StoreDirectory.Identity: Entry]>([:])
  /// The directories that a thread of this process is opening, and the process. Opens of one directory take turns, as
  /// one may wait for another process. A forked child has the table, but not the threads.
  private let opening = Monitor<[StoreDirectory.Identity: Int32]>([:])

  private init() {
    // A program that stores and exits expects to find the responses again.
    atexit {
      for store in StoreRegistry.shared.openStores() { store.threads.close(as: .exiting) }
    }
  }

  private func openStores() -> [ResponseStore] {
    let processID = getpid()
    return stores.withLock { $0.values.compactMap { $0.processID == processID ? $0.store : nil } }
  }

  /// - Parameter failedStore: A failed store of the directory, or of another one that was there before.
  func open(
    directory path: String, options: ResponseStore.Options, inPlaceOf failedStore: ResponseStore? = nil
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
    var counts = failedStore?.context.counts
    try failedStore.map { failedStore throws(StoreError) in try releaseFiles(of: failedStore) }
    let existing = existing(directory.identity, timeout: options.openTimeout)
    if let store = existing, store.context.isUnusable {
      counts = store.context.counts
      try releaseFiles(of: store)
    } else if let store = existing {
      guard store.context.options.runsInBackground || !options.runsInBackground else {
        store.close()
        throw StoreError(
          .busy, directory: path, reason: "this process has the directory open for inspection",
          remedy: "Release that object before opening a cache")
      }
      if let failedStore { store.flusher.takeOverLoss(upTo: failedStore.acceptedNumber) }
      if !options.opensExistingOnly { store.capacityByteCount = options.capacityByteCount }
      return store
    }
    let store = try StoreOpener(
      directory: directory, options: options, counts: counts ?? StoreCounters()
    ).open()
    if let before = existing ?? failedStore { store.flusher.takeOverLoss(upTo: before.acceptedNumber) }
    try store.threads.start()
    stores.withLock { $0[directory.identity] = Entry(store: store, queue: store.queue, processID: processID) }
    return store
  }

  /// Closes the files of a failed store.
  private func releaseFiles(of store: ResponseStore) throws(StoreError) {
    guard !store.threads.releaseFiles() else { return }
    throw StoreError(
      .busy, directory: store.directory,
      reason: "the store failed, and this process still uses its data",
      remedy: "Try again when the lookups and writes under way have ended")
  }

  private func existing(_ identity: StoreDirectory.Identity, timeout: Duration) -> ResponseStore? {
    guard let entry = entry(identity) else { return nil }
    if let store = entry.store, store.retainOpen() { return store }
    // Another thread is closing the store, or released the last reference: wait until the queue is written.
    _ = entry.queue.wait(timeout: timeout) { $0.isClosed ? true : nil }
    return nil
  }

  /// Runs `body` with the store that this process has open in a directory, if there is one that has not failed.
  ///
  /// Never opens a store, and waits for no other process.
  func withOpenStore(inDirectory path: String, _ body: (ResponseStore) -> Void) {
    guard let identity = StoreDirectory.Identity(path: path), let store = entry(identity)?.store, store.retainOpen()
    else { return }
    defer { store.close() }
    if store.context.isUsable { body(store) }
  }

  private func entry(_ identity: StoreDirectory.Identity) -> Entry? {
    stores.withLock { $0[identity] }.flatMap { $0.processID == getpid() ? $0 : nil }
  }

  /// Removes a store from the registry, identified by its queue: a newer store of the directory stays.
  func forget(_ identity: StoreDirectory.Identity, queue: Monitor<WriteQueue>) {
    stores.withLock { stores in
      if stores[identity]?.queue === queue { stores[identity] = nil }
    }
  }
}
