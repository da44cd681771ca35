import LMDB

/// Removals from a store that is only looked at, or not even opened. They hold when they are in the log of removals, which
/// needs neither LMDB's write lock nor a reader slot; whoever writes next takes them over into the data.
extension ResponseStore {
  /// Takes over into the data what was removed, and frees its room on the disk: for a store without threads, of which nothing
  /// else would. On another thread, which is left behind when no process has committed anything for a second: one may have been
  /// stopped in the middle of writing.
  package func applyRemovals() {
    guard !options.runsInBackground, !isForked else { return }
    let isFirst = applying.withLock { isRunning -> Bool in
      defer { isRunning = true }
      return !isRunning
    }
    if isFirst {
      let thread = BackgroundThread { [self] in
        while isUsableForApplying, writeNext() {}
        while isUsableForApplying, maintainNext() {}
        applying.update { $0 = false }
      }
      guard let thread else { return applying.update { $0 = false } }
      // Nobody waits for the thread itself.
      _ = thread.join { _ in false }
    }
    _ = waitUnlessStalled(applying, timeout: .seconds(1)) { $0 ? nil : true }
  }

  /// Without the trap for a store that was closed meanwhile.
  private var isUsableForApplying: Bool {
    state.load(ordering: .relaxed) == State.open.rawValue
  }

  /// Removes what a scope covers.
  ///
  /// - Throws: ``StoreError`` when the removal could not be written down, and the store was given up therefore.
  package func removeOrThrow(_ scope: RemovalScope) throws(StoreError) {
    remove(scope)
    guard isGivenUp else { return }
    throw StoreError(
      .givenUp, directory: directory, reason: "the removal could not be written down",
      remedy: "See whether a process that uses the directory is stopped, and let it go on or end it; then try again")
  }

  /// Removes what a scope covers from the store in a directory that other processes use, without opening the data: when there
  /// is no reader slot to look at it with.
  ///
  /// - Throws: ``StoreError``: there is no store, or nobody else uses it; the removal could not be written down.
  package static func remove(_ scope: RemovalScope, fromStoreInUseAt path: String) throws(StoreError) {
    let options = Options.existing
    let directory = try StoreDirectory(
      path: path, allowsUntrusted: options.allowsUntrustedDirectory, makesDirectory: false)
    try StoreOpening(directory: directory, options: options, counts: StatisticsCounters()).lookAtExistingData()
    let isAlone = try directory.lockForOpening(timeout: options.openTimeout)
    guard !isAlone, let log = RemovalLog.open(path: directory.removalLogPath) else {
      // Who is alone must first find out what of the log a power cut has left.
      throw StoreError(
        .busy, directory: path, reason: "its data could not be opened",
        remedy: "Try again")
    }
    try directory.finishOpening()
    do throws(RemovalLog.Failure) {
      try log.append(scope, timeout: options.stallTimeout) {}
    } catch {
      switch error {
      case .busy:
        throw StoreError(
          .busy, directory: path, reason: "the log of removals is full, and nobody takes over what it holds",
          remedy: "See whether a process that uses the directory is stopped, and let it go on or end it")
      case .system(let number):
        throw .unusable(path, doing: "writing to \(RemovalLog.name)", number)
      }
    }
  }
}
