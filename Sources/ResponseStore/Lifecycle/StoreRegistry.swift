import Glibc
import LMDB
import SystemFiles

/// The stores that this process has open, by directory. A process must not open an LMDB file twice.
final class StoreRegistry: Sendable {
  static let shared = StoreRegistry()

  private struct Entry {
    weak var store: ResponseStore?
    /// The store's queue. It shows whether everything is written while the store's deinit runs, when `store` is nil
    /// already.
    let queue: Monitor<WriteQueue>
    /// The process that opened the store. A forked child inherits the registry, but must not use its parent's stores.
    var processID: Int32
  }

  private let stores = Monitor<[DirectoryIdentity: Entry]>([:])
  /// The directories that a thread is opening, with its process ID. Opens of one directory take turns.
  ///
  /// A forked child inherits the dictionary, but not the threads.
  private let opening = Monitor<[DirectoryIdentity: Int32]>([:])

  private init() {
    // Write the queues when the process exits.
    atexit {
      for store in StoreRegistry.shared.openStores() { store.threads.close(as: .exiting) }
    }
  }

  private func openStores() -> [ResponseStore] {
    let processID = getpid()
    return stores.withLock { $0.values.compactMap { $0.processID == processID ? $0.store : nil } }
  }

  /// Opens the store of a directory, or returns the open one.
  ///
  /// - Parameter failedStore: A failed store of the directory, or of an earlier directory at the path.
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
    let existing = existing(directory.identity, timeout: options.openTimeout)
    if let store = existing, !store.context.isUnusable {
      guard store.context.options.runsInBackground || !options.runsInBackground else {
        store.close()
        throw .busy(
          path, reason: "this process has the directory open for inspection",
          remedy: "Release that object before opening a cache")
      }
      if let failedStore { store.flusher.takeOverLoss(upTo: failedStore.acceptedNumber) }
      if !options.opensExistingOnly { store.capacityByteCount = options.capacityByteCount }
      return store
    }
    let failedStore = existing ?? failedStore
    defer { existing?.close() }
    let opener = StoreOpener(
      directory: directory, options: options, counts: failedStore?.context.counts ?? StoreCounters())
    let store = try WriteSignals.suppressing { () throws(StoreError) in try opener.open() }
    if let before = failedStore { store.flusher.takeOverLoss(upTo: before.acceptedNumber) }
    try store.threads.start()
    stores.withLock { $0[directory.identity] = Entry(store: store, queue: store.context.queue, processID: processID) }
    return store
  }

  private func existing(_ identity: DirectoryIdentity, timeout: Duration) -> ResponseStore? {
    guard let entry = entry(identity) else { return nil }
    if let store = entry.store, store.retainOpen() { return store }
    // Another thread is closing the store or has released its last reference. Wait until the queue is written.
    _ = entry.queue.wait(timeout: timeout) { $0.isClosed ? true : nil }
    return nil
  }

  /// Runs `body` with the store that this process has open in a directory, if there is one that has not failed.
  ///
  /// Never opens a store, and waits for no other process.
  func withOpenStore(inDirectory path: String, _ body: (ResponseStore) -> Void) {
    guard let identity = DirectoryIdentity(path: path), let store = entry(identity)?.store, store.retainOpen()
    else { return }
    defer { store.close() }
    if store.context.isUsable { body(store) }
  }

  private func entry(_ identity: DirectoryIdentity) -> Entry? {
    stores.withLock { $0[identity] }.flatMap { $0.processID == getpid() ? $0 : nil }
  }

  /// Removes a store from the registry, identified by its queue: a newer store of the directory stays.
  func forget(_ identity: DirectoryIdentity, queue: Monitor<WriteQueue>) {
    stores.withLock { stores in
      if stores[identity]?.queue === queue { stores[identity] = nil }
    }
  }
}
