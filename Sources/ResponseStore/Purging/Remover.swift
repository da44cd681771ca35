import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// Logs removals on request, which then hide the responses, and compares removal tokens with the log.
///
/// Runs on the caller's thread, which waits for one synced write to the removal log. The writer deletes the records
/// later. Owns the thread that applies removals to a store without threads. Calls ``Writer`` and ``Maintainer`` in such
/// a store.
struct Remover: Sendable {
  let context: StoreContext
  let writer: Writer
  let maintainer: Maintainer
  /// Whether a thread applies removals to a store without threads.
  private let isApplying = Monitor(false)

  // MARK: Removing

  /// Removes the responses that removals cover, or makes them stale, with one sync. Returns the sequence number of the
  /// last removal; nil if the store is unusable, or fails because of this.
  @discardableResult
  func remove(_ removals: [Removal]) -> UInt64? {
    let isExiting = context.isExiting
    // While this process must open the data again, removals are logged nevertheless.
    guard context.isUsable || context.isGenerationInUse else { return nil }
    guard !context.isForked else {
      context.log(
        .forked, "A forked child cannot remove responses through its parent's store; reopen the directory in the child")
      return nil
    }
    let options = context.options
    let number: UInt64
    do throws(RemovalLog.Failure) {
      number = try context.removalLog.append(removals, timeout: options.stallTimeout) {
        if options.runsInBackground {
          context.queue.update { _ in }
        } else if options.opensExistingOnly {
          applyRemovals()
        } else {
          writer.writePending()
        }
      }
    } catch {
      context.fail("a removal could not be made durable (\(error))")
      return nil
    }
    // Only now, because the directory may have been replaced while the removal was logged.
    if !isExiting { context.failIfDirectoryMoved() }
    // If the generation has ended in the meantime, the next one may have been filled already. The caller repeats the
    // removal in the reopened store, where it is counted.
    guard context.isUsable || isExiting && context.isGenerationInUse else { return nil }
    context.counts.count(removals.count, .purges)
    context.removals.catchUp()
    for removal in removals {
      context.counts.activity.observers.emit(.purged(scope: removal.scope, isSoft: !removal.isHard))
    }
    guard options.runsInBackground else {
      writer.writePending()
      return number
    }
    // If the writer is idle, wait a moment for it, so that counts and sizes usually include the removal on return. Not
    // with a lease: then a machine that purges waits for the removals of all others.
    let sequence = context.removalLog.sequence
    let isIdle = context.queue.update { !$0.hasWrites && !$0.isWriting && !$0.isClosing && $0.mayApplyRemovals }
    if isIdle, !options.checksLease {
      _ = context.queue.wait(timeout: .milliseconds(4)) { [context] _ in
        context.removalLog.lastApplied >= sequence ? true : nil
      }
    }
    return number
  }

  /// See ``ResponseStore/remove(_:movingPast:of:)``.
  func remove(_ scopes: [RemovalScope], movingPast token: inout RemovalToken, of key: RequestKey?) {
    guard !scopes.isEmpty, let removal = remove(scopes.map { Removal($0) }),
      let number = context.removalNumber(in: token),
      !context.removals.mayCover(key, after: number, before: removal + 1 - UInt64(scopes.count))
    else { return }
    token = removal | context.tokenTag
  }

  /// Applies logged removals to a store without threads, and deletes the records.
  ///
  /// Another thread does the work, because it may wait for a suspended process that holds the write lock. This call
  /// returns if no process commits for a second; the thread continues.
  func applyRemovals() {
    guard !context.options.runsInBackground, !context.isForked else { return }
    let isFirst = isApplying.withLock { isApplying -> Bool in
      defer { isApplying = true }
      return !isApplying
    }
    if isFirst {
      let thread = BackgroundThread { [self] in
        while context.isOpen, writer.writeNext() {}
        while context.isOpen, maintainer.maintainNext() {}
        isApplying.update { $0 = false }
      }
      guard let thread else { return isApplying.update { $0 = false } }
      // The wait below replaces joining the thread.
      _ = thread.join { _ in false }
    }
    _ = context.waitUnlessStalled(isApplying, timeout: .seconds(1)) { $0 ? nil : true }
  }

  // MARK: Tokens

  /// See ``ResponseStore/removalToken``.
  var token: RemovalToken {
    if context.isClosed { Trap.usedAfterClose(context.directory) }
    return context.removalLog.sequence | context.tokenTag
  }

  /// See ``ResponseStore/effectOfRemovals(on:storedAt:fields:since:)``.
  @inline(__always)
  func effectOfRemovals(
    since token: inout RemovalToken, on key: @autoclosure () -> RequestKey?, storedAt: @autoclosure () -> Date,
    fields: () -> HeaderFields?
  ) -> RemovalEffect {
    guard var number = context.removalNumber(in: token), context.isUsable else { return .removed }
    defer { token = number | context.tokenTag }
    return context.removals.effect(after: &number, on: key(), storedAt: storedAt(), fields: fields)
  }
}
