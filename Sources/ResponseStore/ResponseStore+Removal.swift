import FoundationEssentials
import HTTPCaching
import LMDB

/// A point in the order of removals, for comparison with later ones: the number of the last removal, and how many
/// stores this process had given up by then.
///
/// Each response has one: taken when its origin was asked or, for one that exists already, when it was stored or looked
/// up. A response is served only if no later removal covers it, wherever it is: in flight, in memory, in the queue or
/// on disk. ``ResponseStore/snapshot`` gives the present one. Zero comes before every removal.
public typealias RemovalToken = UInt64

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
    _ = append(scope)
  }

  /// Removes what a scope covers, but for what has this token: it is moved past the removal. That cannot be if another
  /// removal has come between the token and this one; then the token stays, and both cover it.
  package func remove(_ scope: RemovalScope, movingPast token: inout RemovalToken) {
    guard let removal = append(scope), let number = removalNumber(in: token), removal == number + 1 else { return }
    token = removal | snapshotMark
  }

  /// Puts a removal in force, and returns its number; nil if the store is of no use, or is given up because this fails.
  private func append(_ scope: RemovalScope) -> UInt64? {
    let isExiting = state.load(ordering: .relaxed) == State.exiting.rawValue
    if !isExiting { giveUpIfMoved() }
    guard isUsable || isExiting else { return nil }
    guard !isForked else {
      log(.forked, "A forked child cannot remove from the store of its parent; open it anew in the child")
      return nil
    }
    let number: UInt64
    do throws(RemovalLog.Failure) {
      number = try removalLog.append(scope, timeout: options.stallTimeout) {
        if options.runsInBackground {
          wakeWriter()
        } else if options.opensExistingOnly {
          applyRemovals()
        } else {
          writePending()
        }
      }
    } catch {
      condemn("a removal could not be made durable (\(error))")
      return nil
    }
    removals.catchUp()
    guard options.runsInBackground else {
      writePending()
      return number
    }
    // A writer that has nothing else to do deletes a little at once; so counts and sizes are right when this returns. More
    // than a moment it is not worth.
    let sequence = removalLog.sequence
    let isIdle = queue.update { !$0.hasStores && !$0.isWriting && !$0.isClosing && $0.mayAdopt }
    if isIdle { _ = queue.wait(timeout: .milliseconds(4)) { _ in removalLog.adopted >= sequence ? true : nil } }
    return number
  }

  /// Lets the writer look.
  func wakeWriter() {
    queue.update { _ in }
  }

  /// Whether the log of removals has something that the data has not taken over, and may be now.
  var hasRemovalsToAdopt: Bool { removalLog.hasRemovalsToAdopt }

  // MARK: For copies that others hold

  /// The present point in the order of removals: what ``wasRemoved(_:storedAt:groups:since:)`` compares with. Costs a
  /// nanosecond.
  public var snapshot: RemovalToken {
    if state.load(ordering: .relaxed) == State.closed.rawValue { Trap.usedAfterClose(directory) }
    return removalLog.sequence | snapshotMark
  }

  /// Whether a copy taken at `snapshot` has since been covered by a removal, of any process. `snapshot` is moved to now.
  ///
  /// A memory tier asks this before it answers. Costs a nanosecond while nothing is removed, as then what the copy is is not
  /// looked at.
  ///
  /// - Parameter isOnItsOwn: Whether the copy is to outlive the store, as it is all that there is. When the store was
  ///   given up, it then counts as removed only if others may have begun anew. By default it does at once.
  public func wasRemoved(
    _ key: @autoclosure () -> RequestKey, storedAt: @autoclosure () -> Date, groups: () -> [String],
    isOnItsOwn: @autoclosure () -> Bool = false, since snapshot: inout RemovalToken
  ) -> Bool {
    guard var number = removalNumber(in: snapshot) else { return true }
    guard isUsable || (isOnItsOwn() && !mayMissRemovals) else { return true }
    defer { snapshot = number | snapshotMark }
    return removals.wasRemoved(after: &number) { $0.covers(key: key().bytes, storedAt: storedAt(), groups: groups) }
  }

  /// Whether a removal since `snapshot`, of any process, may cover what comes from a URL now: a response on its way, of
  /// which nothing is known yet but its key. `snapshot` is moved to now.
  ///
  /// - Parameter url: Nil if it cannot be told; then any removal may cover the response.
  package func mayBeRemoved(_ url: URL?, partition: String, since snapshot: inout RemovalToken) -> Bool {
    guard var number = removalNumber(in: snapshot) else { return true }
    guard isUsable || !mayMissRemovals else { return true }
    defer { snapshot = number | snapshotMark }
    return removals.wasRemoved(after: &number) { scope in
      url.flatMap { RequestKey(url: $0, partition: partition) }.map { scope.mayCover($0) } ?? true
    }
  }

  /// Whether others may remove what this store, which was given up, cannot tell: they may have begun anew, or know as it does
  /// that nothing is found in the data any more, and so have no place to note a removal.
  private var mayMissRemovals: Bool { mayHaveSuccessor || storeDirectory.condemnedFlag?.isSet == true }

  /// Whether a removal has covered what waits for the writer, or it only hides what is on disk.
  func wasRemoved(_ staged: StagedResponse) -> Bool {
    if staged.isDiscard { return true }
    var snapshot = staged.snapshot
    return removals.wasRemoved(after: &snapshot) { staged.isCovered(by: $0) }
  }
}
