import Foundation
import HTTPCaching
import ResponseStore
import Synchronization

/// Responses kept in memory, bounded by bytes, least recently used out first (by a clock hand, so that a hit moves
/// nothing).
///
/// Sixty-four shards by key, so that threads seldom meet, each under a lock of its own that is held for a table access; the byte
/// count is one for all.
final class MemoryTier: Sendable {
  /// A response and what is needed to tell whether it still holds. What a hit reads fits into 64 bytes: among many entries it waits
  /// for memory most of its time.
  final class Entry: Sendable {
    let response: StoredURLResponse
    let vary: VarySelection
    /// The point in the order of removals up to which none covers it. Moved by lookups that have found that to be so.
    let removalToken: Atomic<RemovalToken>
    /// What the store's index knows it by.
    let useDigest: UInt64
    /// Whether the store has it too.
    let isOnDisk: Bool
    /// Since the hand last passed. False at first: what is never asked for goes before what is.
    let wasUsed = Atomic<Bool>(false)
    let byteCount: Int

    /// - Parameter useDigest: Of the store that has it too; nil if none does.
    init(_ response: StoredURLResponse, useDigest: UInt64?, removalToken: RemovalToken) {
      self.response = response
      vary = response.record.vary
      isOnDisk = useDigest != nil
      self.useDigest = useDigest ?? 0
      self.removalToken = Atomic(removalToken)
      byteCount =
        Self.overheadByteCount + response.record.key.bytes.count + response.record.body.count
        + response.record.fieldsByteCount
    }

    func goesBefore(_ other: Entry) -> Bool {
      guard vary.isVarying == other.vary.isVarying else { return vary.isVarying }
      return response.record.facts.date >= other.response.record.facts.date
    }

    /// The objects around the bytes, roughly.
    private static let overheadByteCount = 512
  }

  /// What is kept for one key. Nearly always it is one entry, to which no list leads.
  private struct Variants: Sequence {
    private let first: Entry
    private let others: [Entry]

    /// Nil if there are none.
    init?(_ entries: [Entry]) {
      guard let first = entries.first else { return nil }
      self.first = first
      others = Array(entries.dropFirst())
    }

    var count: Int { 1 + others.count }
    var byteCount: Int { others.reduce(first.byteCount) { $0 + $1.byteCount } }

    /// The one to answer with: the newest by Date; one that varies goes before one that does not (RFC 9111, section 4.1).
    @inline(__always)
    func best(where matches: (VarySelection) -> Bool) -> Entry? {
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
    /// Keys in the order in which the clock hand passes them.
    var ring: [RequestKey] = []
    var hand = 0
    /// Counts changes, so that a copy from disk is not put over what came meanwhile.
    var changeCount: UInt64 = 0

    /// Puts an entry in the place of the same variant, or beside the others.
    mutating func put(_ entry: Entry, for key: RequestKey) {
      let present = variants[key]
      if present == nil {
        // Keys that were removed leave places in the ring; once they are the most, it is made anew.
        if ring.count > 2 * variants.count + 16 { ring = Array(variants.keys) }
        ring.append(key)
      }
      variants[key] = Variants((present?.filter { $0.vary != entry.vary } ?? []) + [entry])
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

  var byteCount: Int { usedByteCount.load(ordering: .relaxed) }

  var entryCount: Int {
    shards.reduce(0) { $0 + $1.shard.withLock { $0.variants.values.reduce(0) { $0 + $1.count } } }
  }

  var capacityByteCount: Int {
    get { capacity.load(ordering: .relaxed) }
    set {
      capacity.store(newValue, ordering: .relaxed)
      trim()
    }
  }

  private func box(for key: RequestKey) -> ShardBox {
    shards[Int(key.spreadingDigest % UInt64(Self.shardCount))]
  }

  /// Of the variants of a key that `matches` accepts the one to answer with.
  func find(_ key: RequestKey, where matches: (VarySelection) -> Bool) -> Entry? {
    let variants = box(for: key).shard.withLock { $0.variants[key] }
    guard let best = variants?.best(where: matches) else { return nil }
    if !best.wasUsed.load(ordering: .relaxed) { best.wasUsed.store(true, ordering: .relaxed) }
    return best
  }

  /// How the variants of a key were selected.
  func variants(of key: RequestKey) -> [VarySelection] {
    box(for: key).shard.withLock { $0.variants[key] }?.map(\.vary) ?? []
  }

  /// What the two ways to insert compare with.
  func changeCount(for key: RequestKey) -> UInt64 {
    box(for: key).shard.withLock { $0.changeCount }
  }

  /// Keeps a copy of what the disk has; not if it is larger than the whole tier, or anything has changed, as whatever
  /// changed is newer.
  ///
  /// - Parameter changeCount: What ``changeCount(for:)`` said before the disk was read.
  func insertCopy(_ entry: Entry, unlessChangedSince changeCount: UInt64) {
    guard entry.byteCount <= capacityByteCount else { return }
    change(entry.response.record.key) { shard, key in
      if shard.changeCount == changeCount { shard.put(entry, for: key) }
    }
  }

  /// Keeps a response that is new in place of the same variant.
  ///
  /// One that is larger than the whole tier is not kept, nor is the one that it was to replace. Where the disk has it,
  /// the key goes with all its variants: an older one must not answer where the newer one would.
  ///
  /// - Parameters:
  ///   - changeCount: For a response that was handed to the disk first, what ``changeCount(for:)`` said before that. If
  ///     anything has changed since, the key goes, too: of two that come at once only the disk knows which is the
  ///     newer. Nil where memory is the only tier.
  ///   - isVoid: Asked with the lock that removals take, too: a response that has lost its right to be kept is not.
  func insert(_ entry: Entry, unlessChangedSince changeCount: UInt64?, unless isVoid: () -> Bool) {
    let fits = entry.byteCount <= capacityByteCount
    change(entry.response.record.key) { shard, key in
      let isNewest = changeCount == nil || changeCount == shard.changeCount
      shard.changeCount &+= 1
      if fits, isNewest, !isVoid() {
        shard.put(entry, for: key)
      } else if changeCount != nil {
        shard.variants[key] = nil
      } else if !fits {
        shard.variants[key] = Variants(shard.variants[key]?.filter { $0.vary != entry.vary } ?? [])
      }
    }
  }

  /// Puts an entry in the place of another, or takes the key out with all its variants if that has gone.
  func replace(_ old: Entry?, with entry: Entry) {
    let fits = entry.byteCount <= capacityByteCount
    change(entry.response.record.key) { shard, key in
      shard.changeCount &+= 1
      if fits, let old, shard.variants[key]?.contains(where: { $0 === old }) == true {
        shard.put(entry, for: key)
      } else {
        shard.variants[key] = nil
      }
    }
  }

  /// Changes what there is for a key, counts its bytes, and makes room for them.
  private func change(_ key: RequestKey, _ body: (inout Shard, RequestKey) -> Void) {
    let change = box(for: key).shard.withLock { shard -> Int in
      let before = shard.variants[key]?.byteCount ?? 0
      body(&shard, key)
      return (shard.variants[key]?.byteCount ?? 0) - before
    }
    usedByteCount.add(change, ordering: .relaxed)
    if change > 0 { trim() }
  }

  /// Takes one entry out, if it is still there.
  func remove(_ entry: Entry) {
    let key = entry.response.record.key
    let freed = box(for: key).shard.withLock { shard -> Int in
      guard let present = shard.variants[key], present.contains(where: { $0 === entry }) else { return 0 }
      shard.variants[key] = Variants(present.filter { $0 !== entry })
      shard.changeCount &+= 1
      return entry.byteCount
    }
    usedByteCount.subtract(freed, ordering: .relaxed)
  }

  /// Takes out a key with all its variants.
  func remove(_ key: RequestKey) {
    let freed = box(for: key).shard.withLock { shard -> Int in
      shard.changeCount &+= 1
      return shard.variants.removeValue(forKey: key)?.byteCount ?? 0
    }
    usedByteCount.subtract(freed, ordering: .relaxed)
  }

  /// Takes out every entry that `isCovered` names.
  func removeAll(where isCovered: (CachedRecord) -> Bool) {
    for box in shards {
      let freed = box.shard.withLock { shard -> Int in
        shard.changeCount &+= 1
        var freed = 0
        for (key, variants) in shard.variants {
          let kept = variants.filter { !isCovered($0.response.record) }
          freed += variants.byteCount - kept.reduce(0) { $0 + $1.byteCount }
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

  /// Lets entries go until the rest fits.
  private func trim() {
    var idleShards = 0
    // A shard in which all was used gives nothing the first time, lest it lose what is asked for all the time only because it
    // holds little else.
    while byteCount > capacityByteCount, idleShards < 2 * Self.shardCount {
      let index = nextVictimShard.wrappingAdd(1, ordering: .relaxed).oldValue & (Self.shardCount - 1)
      let freed = shards[index].shard.withLock { Self.evictOne(from: &$0) }
      usedByteCount.subtract(freed, ordering: .relaxed)
      idleShards = freed > 0 ? 0 : idleShards + 1
    }
  }

  /// Moves the hand to the first key that was not used since it last passed, and lets its variants go; at most once around.
  ///
  /// - Returns: The bytes freed; 0 if all were used.
  private static func evictOne(from shard: inout Shard) -> Int {
    var steps = 0
    while !shard.ring.isEmpty, steps < shard.ring.count {
      if shard.hand >= shard.ring.count { shard.hand = 0 }
      let key = shard.ring[shard.hand]
      guard let variants = shard.variants[key] else {
        // Removed earlier; its place in the ring goes now.
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
