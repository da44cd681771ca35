import HTTPCaching

/// The pending writes of this process, by key: they make a response readable as soon as it is stored.
///
/// Of each variant one write waits in the queue and one is with the writer at most, and a key has few variants: so each
/// call does constant work, however often one key is stored.
///
/// Sharded, so that the writer, while it takes out what it has committed, does not starve lookups.
final class StagingArea: Sendable {
  private static let shardCount: UInt64 = 64
  /// A table that has grown larger than this is given back when it is empty.
  private static let keptCapacity = 256
  /// By the digest of the key: its newest pending write, which leads to the older ones.
  private let shards = (0..<shardCount).map { _ in Monitor<[UInt64: StagedResponse]>([:]) }
  /// Lets readers pass without a lock where nothing is staged for their key.
  private let keys = StagedKeys()
  /// For changes of ``keys``. No reader waits for it.
  private let counting = Monitor(())

  var isEmpty: Bool { keys.isEmpty }

  /// False if nothing is staged for the key.
  func mayContain(_ key: RequestKey) -> Bool { mayContain(key.spreadingDigest) }

  private func mayContain(_ digest: UInt64) -> Bool { !keys.isEmpty && keys.mayContain(digest) }

  // MARK: Changes

  /// What a new write finds of its key.
  struct Rivals {
    /// The newest write of the same variant.
    var sameVariant: StagedResponse?
    /// How many writes of the key wait in the queue.
    var queuedCount = 0

    /// The write of the same variant that a new one supersedes, as the writer has not taken it yet.
    func queued(in queue: WriteQueue) -> StagedResponse? {
      sameVariant.flatMap { queue.isQueued($0) ? $0 : nil }
    }
  }

  /// Looks at the pending writes of a new one's key. With the queue's lock.
  func rivals(of response: StagedResponse, in queue: WriteQueue) -> Rivals {
    guard mayContain(response.digest) else { return Rivals() }
    return withNewest(of: response.digest) { newest in
      var rivals = Rivals()
      Self.forEach(from: newest) { other in
        guard other.hasSameKey(as: response) else { return }
        if rivals.sameVariant == nil, other.hasSameVariant(as: response) { rivals.sameVariant = other }
        if queue.isQueued(other) { rivals.queuedCount += 1 }
      }
      return rivals
    }
  }

  /// Adds a write, in front of the older ones of its key; one call after the other: the caller sees to that.
  ///
  /// - Parameter superseded: A write of the same key that it takes the place of.
  func insert(_ response: StagedResponse, inPlaceOf superseded: StagedResponse? = nil) {
    withNewest(of: response.digest) { newest in
      if let superseded { Self.unlink(superseded, from: &newest) }
      response.next = newest
      newest = response
    }
    if superseded == nil { counting.withLock { _ in keys.add(response.digest) } }
  }

  /// Takes out what was inserted, and has been written or dropped.
  func remove(_ written: [StagedResponse]) {
    // A few at a time, as others who store wait for the counts, and a thread that has the lock may lose its processor.
    for start in stride(from: 0, to: written.count, by: 32) {
      let some = written[start..<min(start + 32, written.count)]
      for response in some { withNewest(of: response.digest) { Self.unlink(response, from: &$0) } }
      counting.withLock { _ in
        for response in some { keys.remove(response.digest) }
      }
    }
    if isEmpty { shrink() }
  }

  /// Gives back the memory of tables that a long queue has made large.
  private func shrink() {
    for shard in shards {
      shard.withLock { if $0.isEmpty, $0.capacity > Self.keptCapacity { $0 = [:] } }
    }
  }

  private static func unlink(_ response: StagedResponse, from newest: inout StagedResponse?) {
    defer { response.next = nil }
    guard newest !== response else {
      newest = response.next
      return
    }
    var staged = newest
    while let current = staged {
      if current.next === response {
        current.next = response.next
        return
      }
      staged = current.next
    }
  }

  // MARK: Lookups

  /// The newest pending write of a variant.
  func newest(of key: RequestKey, vary: VarySelection) -> StagedResponse? {
    staged(for: key).first { $0.vary == vary }
  }

  /// Whether anything is staged for a key.
  func concerns(_ key: RequestKey) -> Bool {
    !staged(for: key).isEmpty
  }

  /// The newest pending write of each variant of a key, the newest first.
  func variants(of key: RequestKey) -> [StagedResponse] {
    var variants: [StagedResponse] = []
    for response in staged(for: key) where !variants.contains(where: { $0.hasSameVariant(as: response) }) {
      variants.append(response)
    }
    return variants
  }

  /// All that is staged for a key, newest first.
  private func staged(for key: RequestKey) -> [StagedResponse] {
    withNewest(of: key.spreadingDigest) { newest in
      var found: [StagedResponse] = []
      Self.forEach(from: newest) { if $0.hasKey(key) { found.append($0) } }
      return found
    }
  }

  private static func forEach(from newest: StagedResponse?, _ body: (StagedResponse) -> Void) {
    var staged = newest
    while let response = staged {
      body(response)
      staged = response.next
    }
  }

  /// Runs `body` with the newest write of a key, and the lock of its shard.
  @inline(__always)
  private func withNewest<R>(of digest: UInt64, _ body: (inout StagedResponse?) -> R) -> R {
    shards[Int((digest >> 16) & (Self.shardCount - 1))].withLock { body(&$0[digest]) }
  }
}
