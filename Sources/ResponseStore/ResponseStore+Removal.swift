import FoundationEssentials
import HTTPCaching
import LMDB

/// Removals. Each returns when nothing that it covers can be read again, by any thread or process, nor after a crash or
/// a power cut; also not from a store that was queued before. Cost: one write to the log of removals and one sync of it,
/// however much is removed, and whoever writes to the data meanwhile; the entries are deleted behind it. Safe from any
/// thread; they block, so not from one that must not.
extension ResponseStore {
  /// Removes all variants of a key.
  public func remove(_ key: RequestKey) {
    remove(.key(key.bytes))
  }

  /// Removes all that is stored for a URL, whatever method, partition and variant (RFC 9111, section 4.4).
  public func removeResponses(for url: URL) {
    guard let key = RequestKey(url: url) else { return }
    remove(.target(Array(key.targetPrefix)))
  }

  /// Removes everything.
  public func removeAll() {
    remove(.everything)
  }

  /// Removes what was stored after a moment; what was stored at it stays.
  public func removeResponses(since date: Date) {
    remove(.since(date))
  }

  /// Removes what is stored for a host, whatever scheme and port. Not for its subdomains.
  public func removeResponses(forHost host: String) {
    remove(.prefix(RequestKey.prefix(host: host)))
  }

  /// Removes what is stored for URLs that begin with this one: same scheme, host and port, and a path and query that
  /// begin with these characters.
  public func removeResponses(withPrefix url: URL) {
    guard let prefix = RequestKey.prefix(url: url) else { return }
    remove(.prefix(prefix))
  }

  /// Removes the members of a cache group (RFC 9875).
  ///
  /// - Parameters:
  ///   - group: The group's name, compared character by character.
  ///   - url: Any URL of the origin whose group it is.
  public func removeResponses(inGroup group: String, origin url: URL) {
    guard let origin = RequestKey.originPrefix(url: url) else { return }
    remove(.group(origin: origin, name: group))
  }

  /// Removes what a scope covers.
  public func remove(_ scope: RemovalScope) {
    let isExiting = state.load(ordering: .relaxed) == State.exiting.rawValue
    if !isExiting { giveUpIfMoved() }
    guard isUsable || isExiting else { return }
    guard !isForked else {
      return log(.forked, "A forked child cannot remove from the store of its parent; open it anew in the child")
    }
    do throws(RemovalLog.Failure) {
      try removalLog.append(scope, timeout: options.stallTimeout) {
        if options.runsInBackground { wakeWriter() } else { writePending() }
      }
    } catch {
      return condemn("a removal could not be made durable (\(error))")
    }
    removals.catchUp()
    guard options.runsInBackground else {
      writePending()
      return
    }
    // A writer that has nothing else to do deletes a little at once; so counts and sizes are right when this returns. More
    // than a moment it is not worth.
    let sequence = removalLog.sequence
    let isIdle = queue.update { !$0.hasStores && !$0.isWriting && !$0.isClosing && $0.mayAdopt }
    if isIdle { _ = queue.wait(timeout: .milliseconds(4)) { _ in removalLog.adopted >= sequence ? true : nil } }
  }

  /// Lets the writer look.
  func wakeWriter() {
    queue.update { _ in }
  }

  /// Whether the log of removals has something that the data has not taken over, and may be now.
  var hasRemovalsToAdopt: Bool { removalLog.sequence > removalLog.adopted }

  // MARK: For copies that others hold

  /// Names a state of the store: what ``wasRemoved(_:storedAt:groups:since:)`` compares with. Costs a nanosecond.
  public var snapshot: UInt64 {
    if state.load(ordering: .relaxed) == State.closed.rawValue { Trap.usedAfterClose(directory) }
    return removalLog.sequence | snapshotMark
  }

  /// Whether a copy taken at `snapshot` has since been covered by a removal, of any process. `snapshot` is moved to now.
  ///
  /// A memory tier asks this before it answers. Costs a nanosecond while nothing is removed, as then what the copy is is not
  /// looked at.
  public func wasRemoved(
    _ key: @autoclosure () -> RequestKey, storedAt: @autoclosure () -> Date, groups: () -> [String],
    since snapshot: inout UInt64
  ) -> Bool {
    guard isUsable, var number = removalNumber(in: snapshot) else { return true }
    defer { snapshot = number | snapshotMark }
    return removals.wasRemoved(after: &number) { $0.covers(key: key().bytes, storedAt: storedAt(), groups: groups) }
  }

  func wasRemoved(_ staged: StagedResponse) -> Bool {
    var snapshot = staged.snapshot
    return removals.wasRemoved(after: &snapshot) { staged.isCovered(by: $0) }
  }
}
