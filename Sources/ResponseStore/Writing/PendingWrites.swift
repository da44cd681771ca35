import HTTPCaching

/// The pending writes of this process, by key: they make a response readable as soon as it is stored.
///
/// Of each variant one write waits in the queue and one is with the writer at most, and a key has few variants: so each
/// call does constant work, however often one key is stored.
///
/// Sharded, so that the writer, while it takes out what it has committed, does not starve lookups.
final class PendingWrites: Sendable {
  private static let shardCount: UInt64 = 64
  /// A table with a larger capacity is released when it is empty.
  private static let keptCapacity = 256
  /// By the digest of the key: its newest pending write, which leads to the older ones.
  private let shards = (0..<shardCount).map { _ in Monitor<[UInt64: PendingWrite]>([:]) }
  /// Lets readers pass without a lock when their key has no pending write.
  private let keys: PendingWriteFilter
  /// The same filter, for changes. No reader waits for this lock.
  private let changedKeys: Monitor<PendingWriteFilter>

  init() {
    keys = PendingWriteFilter()
    changedKeys = Monitor(keys)
  }

  var isEmpty: Bool { keys.isEmpty }

  /// Whether the key may have a pending write. May be wrong only if it is true.
  func mightContain(_ key: RequestKey) -> Bool { mightContain(key.spreadingDigest) }

  private func mightContain(_ digest: UInt64) -> Bool { !keys.isEmpty && keys.mightContain(digest) }

  // MARK: Changes

  /// The pending writes of a new write's key.
  struct Rivals {
    /// The newest write of the same variant.
    var sameVariant: PendingWrite?
    /// How many writes of the key wait in the queue.
    var queuedCount = 0

    /// The write of the same variant that a new one supersedes, as the writer has not taken it yet.
    func queued(in queue: WriteQueue) -> PendingWrite? {
      sameVariant.flatMap { queue.isQueued($0) ? $0 : nil }
    }
  }

  /// Looks at the pending writes of a new one's key. With the queue's lock.
  func rivals(of response: PendingWrite, in queue: WriteQueue) -> Rivals {
    guard mightContain(response.digest) else { return Rivals() }
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
  func insert(_ response: PendingWrite, inPlaceOf superseded: PendingWrite? = nil) {
    withNewest(of: response.digest) { newest in
      if let superseded { Self.unlink(superseded, from: &newest) }
      response.next = newest
      newest = response
    }
    if superseded == nil { changedKeys.withLock { $0.add(response.digest) } }
  }

  /// Removes writes that are committed or dropped.
  func remove(_ written: [PendingWrite]) {
    // A few at a time, as callers of `store(_:)` wait for the filter, and a thread that has the lock may lose its
    // processor.
    for start in stride(from: 0, to: written.count, by: 32) {
      let some = written[start..<min(start + 32, written.count)]
      for response in some { withNewest(of: response.digest) { Self.unlink(response, from: &$0) } }
      changedKeys.withLock { keys in
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

  private static func unlink(_ response: PendingWrite, from newest: inout PendingWrite?) {
    defer { response.next = nil }
    guard newest !== response else {
      newest = response.next
      return
    }
    var next = newest
    while let current = next {
      if current.next === response {
        current.next = response.next
        return
      }
      next = current.next
    }
  }

  // MARK: Lookups

  /// The newest pending write of a variant.
  func newest(of key: RequestKey, vary: VaryKey) -> PendingWrite? {
    writes(for: key).first { $0.vary == vary }
  }

  /// Whether a key has pending writes.
  func contains(_ key: RequestKey) -> Bool {
    !writes(for: key).isEmpty
  }

  /// The newest pending write of each variant of a key, the newest first.
  func variants(of key: RequestKey) -> [PendingWrite] {
    var variants: [PendingWrite] = []
    for response in writes(for: key) where !variants.contains(where: { $0.hasSameVariant(as: response) }) {
      variants.append(response)
    }
    return variants
  }

  /// The pending writes of a key, newest first.
  private func writes(for key: RequestKey) -> [PendingWrite] {
    withNewest(of: key.spreadingDigest) { newest in
      var found: [PendingWrite] = []
      Self.forEach(from: newest) { if $0.hasKey(key) { found.append($0) } }
      return found
    }
  }

  private static func forEach(from newest: PendingWrite?, _ body: (PendingWrite) -> Void) {
    var next = newest
    while let response = next {
      body(response)
      next = response.next
    }
  }

  /// Runs `body` with the newest write of a key, and the lock of its shard.
  @inline(__always)
  private func withNewest<R>(of digest: UInt64, _ body: (inout PendingWrite?) -> R) -> R {
    shards[Int((digest >> 16) & (Self.shardCount - 1))].withLock { body(&$0[digest]) }
  }
}
