import CacheModel
import HTTPCaching

/// The pending writes of this process, by key. They make a response readable as soon as it is stored.
///
/// Each variant has at most one write in the queue and one with the writer, and a key has few variants. Each call
/// therefore does constant work, no matter how often a key is stored.
///
/// The writes are sharded, so that the writer does not starve lookups while it removes committed writes.
final class PendingWrites: Sendable {
  private static let shardCount: UInt64 = 64
  /// An empty shard with a larger capacity is released.
  private static let keptCapacity = 256
  /// Digest of a key → its newest pending write, the head of a list of its pending writes.
  private let shards = (0..<shardCount).map { _ in Monitor<[UInt64: PendingWrite]>([:]) }
  /// Shows lookups without a lock that their key has no pending write.
  private let keys: PendingWriteFilter
  /// The same filter, for changes. No reader waits for this lock.
  private let changedKeys: Monitor<PendingWriteFilter>

  init() {
    keys = PendingWriteFilter()
    changedKeys = Monitor(keys)
  }

  var isEmpty: Bool { keys.isEmpty }

  /// Whether a key may have a pending write. False is always right.
  func mightContain(_ key: RequestKey) -> Bool { mightContain(key.spreadingDigest) }

  private func mightContain(_ digest: UInt64) -> Bool { !keys.isEmpty && keys.mightContain(digest) }

  // MARK: Changes

  /// The pending writes of a new write's key.
  struct Rivals {
    /// The newest write of the same variant.
    var sameVariant: PendingWrite?
    /// The number of the key's writes in the queue.
    var queuedCount = 0

    /// The write of the same variant that a new write supersedes; nil if the writer has taken it already.
    func queued(in queue: WriteQueue) -> PendingWrite? {
      sameVariant.flatMap { queue.isQueued($0) ? $0 : nil }
    }
  }

  /// Finds the pending writes of a new write's key. The caller holds the queue's lock.
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

  /// Adds a write before the older ones of its key. One thread at a time may call this.
  ///
  /// - Parameter superseded: A write of the same key to remove.
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
    // Remove a few at a time: callers of `store(_:)` wait for the filter's lock, and its holder may be preempted.
    for start in stride(from: 0, to: written.count, by: 32) {
      let some = written[start..<min(start + 32, written.count)]
      for response in some { withNewest(of: response.digest) { Self.unlink(response, from: &$0) } }
      changedKeys.withLock { keys in
        for response in some { keys.remove(response.digest) }
      }
    }
    if isEmpty { shrink() }
  }

  /// Frees the memory of shards that a long queue made large.
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

  func newest(of key: RequestKey, vary: VaryKey) -> PendingWrite? {
    writes(for: key).first { $0.vary == vary }
  }

  /// Whether a key has pending writes.
  func contains(_ key: RequestKey) -> Bool {
    !writes(for: key).isEmpty
  }

  /// Returns the newest pending write of each variant of a key, newest first.
  func variants(of key: RequestKey) -> [PendingWrite] {
    var variants: [PendingWrite] = []
    for response in writes(for: key) where !variants.contains(where: { $0.hasSameVariant(as: response) }) {
      variants.append(response)
    }
    return variants
  }

  /// Returns the pending writes of a key, newest first.
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

  /// Runs `body` with the newest write of a key while holding the lock of its shard.
  @inline(__always)
  private func withNewest<R>(of digest: UInt64, _ body: (inout PendingWrite?) -> R) -> R {
    shards[Int((digest >> 16) & (Self.shardCount - 1))].withLock { body(&$0[digest]) }
  }
}
