import CacheModel
import HTTPCaching
import ResponseStore
import Synchronization

/// Responses in memory, bounded by bytes and evicted with CLOCK, so that a hit moves no entry.
///
/// The keys are distributed over 64 shards to avoid contention. Each shard has its own lock, which is held for one
/// table access. The shards share one byte count.
package final class MemoryTier: CopyHolder {
  package typealias Entry = CacheEntry

  /// The variants of one key. Nearly always there is one, which needs no array.
  private struct Variants: Sequence {
    private let first: Entry
    private let others: [Entry]

    init(only entry: Entry) {
      first = entry
      others = []
    }

    /// Creates a value from entries; nil if there are none.
    init?(_ entries: [Entry]) {
      guard let first = entries.first else { return nil }
      self.first = first
      others = Array(entries.dropFirst())
    }

    var count: Int { 1 + others.count }
    var byteCount: Int { others.reduce(first.memoryByteCount) { $0 + $1.memoryByteCount } }

    /// Returns the newest matching entry by `Date`, with Vary fields if possible.
    @inline(__always)
    func best(where matches: (VaryKey) -> Bool) -> Entry? {
      var best = matches(first.vary) ? first : nil
      if others.isEmpty { return best }
      for entry in others where matches(entry.vary) {
        if best.map({ entry.goesBefore($0) }) ?? true { best = entry }
      }
      return best
    }

    func makeIterator() -> some IteratorProtocol<Entry> { ([first] + others).makeIterator() }
  }

  private struct Shard {
    var variants: [RequestKey: Variants] = [:]
    /// The keys in the order in which the CLOCK hand visits them.
    var ring: [RequestKey] = []
    var hand = 0
    /// The number of changes, so that a copy from disk does not overwrite an entry that is newer.
    var changeCount: UInt64 = 0

    /// Inserts an entry and replaces the entry with the same Vary key.
    mutating func put(_ entry: Entry, for key: RequestKey) {
      guard let present = variants[key] else {
        // The ring still contains removed keys; rebuild it when they are the majority.
        if ring.count > 2 * variants.count + 16 { ring = Array(variants.keys) }
        ring.append(key)
        variants[key] = Variants(only: entry)
        return
      }
      variants[key] = Variants(present.filter { $0.vary != entry.vary } + [entry])
    }
  }

  private static let shardCount = 64
  private let shards: [ShardBox]
  private let usedByteCount = Atomic<Int>(0)
  private let capacity: Atomic<Int>
  private let nextVictimShard = Atomic<Int>(0)

  private final class ShardBox: Sendable {
    let shard = Mutex(Shard())
  }

  init(capacityByteCount: Int) {
    capacity = Atomic(capacityByteCount)
    shards = (0..<Self.shardCount).map { _ in ShardBox() }
  }

  /// The size of the responses in bytes.
  package var byteCount: Int { usedByteCount.load(ordering: .relaxed) }

  /// The number of responses. The records of key spaces are none.
  package var entryCount: Int {
    shards.reduce(0) { count, box in
      count + box.shard.withLock { $0.variants.reduce(0) { $0 + ($1.key.isKeySpace ? 0 : $1.value.count) } }
    }
  }

  /// The maximum size of the responses in bytes.
  package var capacityByteCount: Int {
    get { capacity.load(ordering: .relaxed) }
    set {
      capacity.store(newValue, ordering: .relaxed)
      trim()
    }
  }

  private func box(for key: RequestKey) -> ShardBox {
    shards[Int(key.spreadingDigest % UInt64(Self.shardCount))]
  }

  /// Returns the entry to serve among the variants of a key that `matches` accepts.
  package func lookup(_ key: RequestKey, where matches: (VaryKey) -> Bool) -> Entry? {
    let variants = box(for: key).shard.withLock { $0.variants[key] }
    guard let best = variants?.best(where: matches) else { return nil }
    if !best.wasUsed.load(ordering: .relaxed) { best.wasUsed.store(true, ordering: .relaxed) }
    return best
  }

  func variants(of key: RequestKey) -> [VaryKey] {
    box(for: key).shard.withLock { $0.variants[key] }?.map(\.vary) ?? []
  }

  /// Returns the change count that both insert methods compare with.
  func changeCount(for key: RequestKey) -> UInt64 {
    box(for: key).shard.withLock { $0.changeCount }
  }

  /// Inserts a copy of a response on disk.
  ///
  /// Does nothing if the copy is larger than the whole tier, or if the shard has changed, because a change is newer
  /// than the copy.
  ///
  /// - Parameter changeCount: The result of ``changeCount(for:)`` before the disk was read.
  func insertCopy(_ entry: Entry, unlessChangedSince changeCount: UInt64) {
    guard entry.memoryByteCount <= capacityByteCount else { return }
    change(entry.key) { shard, key in
      if shard.changeCount == changeCount { shard.put(entry, for: key) }
    }
  }

  /// Inserts a new response and replaces the entry with the same Vary key.
  ///
  /// A response larger than the whole tier is not inserted, and the one that it replaces is removed. With a disk tier,
  /// all variants of the key are then removed, because an older one must not be served instead of the newer one.
  ///
  /// - Parameters:
  ///   - changeCount: The result of ``changeCount(for:)`` before the disk tier was changed. If the shard has changed
  ///     since, the key is removed, because only the disk knows which of two concurrent responses is newer. Nil if
  ///     memory is the only tier.
  ///   - isRevoked: Whether the permit to store the response was revoked. Checked under the lock that removals take; a
  ///     response whose permit was revoked is not inserted.
  /// - Returns: Whether the response was inserted.
  func insert(_ entry: Entry, unlessChangedSince changeCount: UInt64?, unless isRevoked: () -> Bool) -> Bool {
    let fits = entry.memoryByteCount <= capacityByteCount
    var isInserted = false
    change(entry.key) { shard, key in
      let isNewest = changeCount == nil || changeCount == shard.changeCount
      shard.changeCount &+= 1
      if fits, isNewest, !isRevoked() {
        shard.put(entry, for: key)
        isInserted = true
      } else if changeCount != nil {
        shard.variants[key] = nil
      } else if !fits {
        shard.variants[key] = Variants(shard.variants[key]?.filter { $0.vary != entry.vary } ?? [])
      }
    }
    return isInserted
  }

  /// Replaces the entry of a response with one that has its updated fields.
  ///
  /// Does nothing if the entry is no longer present. With a disk tier, which then has the updated response, all
  /// variants of the key are removed instead: a concurrent lookup may have inserted an older copy, or be about to. They
  /// are removed as well if the new entry is too large.
  func update(_ response: Entry, to entry: Entry) {
    let fits = entry.memoryByteCount <= capacityByteCount
    change(entry.key) { shard, key in
      let isPresent = shard.variants[key]?.contains { $0 === response } == true
      guard isPresent || entry.isOnDisk else { return }
      shard.changeCount &+= 1
      if isPresent, fits { shard.put(entry, for: key) } else { shard.variants[key] = nil }
    }
  }

  /// Replaces an entry with one of the same response. Does nothing if the entry is no longer present.
  func exchange(_ old: Entry, for entry: Entry) {
    change(entry.key) { shard, key in
      guard shard.variants[key]?.contains(where: { $0 === old }) == true else { return }
      shard.changeCount &+= 1
      shard.put(entry, for: key)
    }
  }

  /// Changes the variants of a key, updates the byte count, and evicts entries if needed.
  private func change(_ key: RequestKey, _ body: (inout Shard, RequestKey) -> Void) {
    let change = box(for: key).shard.withLock { shard -> Int in
      let before = shard.variants[key]?.byteCount ?? 0
      body(&shard, key)
      return (shard.variants[key]?.byteCount ?? 0) - before
    }
    usedByteCount.add(change, ordering: .relaxed)
    if change > 0 { trim() }
  }

  /// Removes an entry if it is still present.
  func remove(_ entry: Entry) {
    change(entry.key) { shard, key in
      guard let present = shard.variants[key], present.contains(where: { $0 === entry }) else { return }
      shard.changeCount &+= 1
      shard.variants[key] = Variants(present.filter { $0 !== entry })
    }
  }

  /// Removes the variants of a key after another cache of the same directory in this process has stored a response.
  package func dropCopies(of key: RequestKey) {
    remove(key)
  }

  /// Removes a key with all its variants.
  func remove(_ key: RequestKey) {
    change(key) { shard, key in
      shard.changeCount &+= 1
      shard.variants[key] = nil
    }
  }

  /// Removes every entry that `isCovered` accepts.
  func removeAll(where isCovered: (Entry) -> Bool) {
    for box in shards {
      let freed = box.shard.withLock { shard -> Int in
        shard.changeCount &+= 1
        var freed = 0
        for (key, variants) in shard.variants {
          let kept = variants.filter { !isCovered($0) }
          freed += variants.byteCount - kept.reduce(0) { $0 + $1.memoryByteCount }
          shard.variants[key] = Variants(kept)
        }
        return freed
      }
      usedByteCount.subtract(freed, ordering: .relaxed)
    }
  }

  /// Calls `body` with every entry.
  func forEach(_ body: (Entry) -> Void) {
    for box in shards {
      for variants in box.shard.withLock({ Array($0.variants.values) }) { variants.forEach(body) }
    }
  }

  /// Evicts entries until the rest fits.
  private func trim() {
    var idleShards = 0
    // The first time, a shard evicts nothing if all its entries were used. Otherwise a shard with few entries would
    // lose one that is in constant use.
    while byteCount > capacityByteCount, idleShards < 2 * Self.shardCount {
      let index = nextVictimShard.wrappingAdd(1, ordering: .relaxed).oldValue & (Self.shardCount - 1)
      let freed = shards[index].shard.withLock { Self.evictOne(from: &$0) }
      usedByteCount.subtract(freed, ordering: .relaxed)
      idleShards = freed > 0 ? 0 : idleShards + 1
    }
  }

  /// Evicts the first key that was not used since the hand last passed. The hand moves at most once around.
  ///
  /// - Returns: The number of freed bytes; 0 if all keys were used.
  private static func evictOne(from shard: inout Shard) -> Int {
    var steps = 0
    while !shard.ring.isEmpty, steps < shard.ring.count {
      if shard.hand >= shard.ring.count { shard.hand = 0 }
      let key = shard.ring[shard.hand]
      guard let variants = shard.variants[key] else {
        // The key was removed earlier; remove it from the ring, too.
        shard.ring.swapAt(shard.hand, shard.ring.count - 1)
        shard.ring.removeLast()
        continue
      }
      steps += 1
      var wasUsed = false
      for entry in variants where entry.wasUsed.exchange(false, ordering: .relaxed) { wasUsed = true }
      if wasUsed {
        shard.hand += 1
        continue
      }
      shard.variants[key] = nil
      shard.ring.swapAt(shard.hand, shard.ring.count - 1)
      shard.ring.removeLast()
      return variants.byteCount
    }
    return 0
  }
}
