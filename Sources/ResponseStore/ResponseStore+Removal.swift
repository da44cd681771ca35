import FoundationEssentials
import HTTPCaching
import LMDB

/// Removals. Each returns when nothing that it covers can be read again, by any thread or process, nor after a crash or
/// a power cut; also not from a store that was queued before. A few hundred entries are deleted at once, more are hidden
/// by a mark and deleted behind it. Cost: one commit and one sync of the disk, however much is removed. Safe from any
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
    guard isUsable || isExiting else { return }
    guard !isForked else {
      return log(.forked, "A forked child cannot remove from the store of its parent; open it anew in the child")
    }
    let order = RemovalOrder(scope: scope, staged: staging.removeAll(coveredBy: scope))
    let isQueued = queue.update { queue -> Bool in
      guard !queue.isClosing else { return false }
      queue.removals.append(order)
      return true
    }
    if !isQueued {
      // The writer is about to end, or has. LMDB lets one thread write after the other.
      carryOut(Batch(removals: [order]), byteLimit: 0)
      staging.forget(order.staged)
    } else if options.runsInBackground {
      if waitUnlessStalled(order.isFinished, for: { $0 ? true : nil }) == nil {
        condemn("a removal waited in vain for the right to write, which a stopped process may hold")
      }
    } else {
      writePending()
    }
  }

  // MARK: For copies that others hold

  /// Names a state of the store: what ``wasRemoved(_:storedAt:groups:since:)`` compares with. Costs a few nanoseconds.
  public var snapshot: UInt64 {
    if state.load(ordering: .relaxed) == State.closed.rawValue { Trap.usedAfterClose(directory) }
    return file.environment.lastTransactionID
  }

  /// Whether a copy taken at `snapshot` has since been covered by a removal, of any process. `snapshot` is moved to now.
  ///
  /// A memory tier asks this before it answers. Costs nanoseconds while nobody writes.
  public func wasRemoved(
    _ key: RequestKey, storedAt: Date, groups: () -> [String], since snapshot: inout UInt64
  ) -> Bool {
    guard isUsable else { return true }
    guard file.environment.lastTransactionID != snapshot else { return false }
    do {
      let (removed, id) = try file.environment.read { (transaction) throws(LMDBError) in
        let counters = try file.counters(in: transaction)
        let removed = try file.wasRemoved(after: snapshot, counters: counters, in: transaction) {
          $0.covers(key: key.bytes, storedAt: storedAt, groups: groups)
        }
        return (removed, transaction.id)
      }
      snapshot = max(snapshot, id)
      return removed
    } catch {
      readFailed(error)
      return true
    }
  }

  func wasRemoved(_ staged: StagedResponse) -> Bool {
    var snapshot = staged.snapshot
    return wasRemoved(
      staged.key, storedAt: staged.storedAt, groups: { CacheGroups.groups(of: staged.head.fields) }, since: &snapshot)
  }
}
