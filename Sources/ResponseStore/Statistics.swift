import CacheActivity
import CacheModel
import Synchronization

/// The activity of a store in this process, and its contents.
public struct StoreStatistics: Sendable, Hashable {
  /// Lookups that found a response.
  public var hits: Int
  /// Lookups that found no response.
  public var misses: Int
  /// Responses committed.
  public var writes: Int
  /// Record headers updated after a validation.
  public var updates: Int
  /// Responses that were accepted and not written.
  ///
  /// They were too large, were removed first, found the queue or the disk full, or updated a response that was gone.
  public var droppedWrites: Int
  /// Writes that a newer write for the same cache key and Vary key replaced in the queue.
  public var supersededWrites: Int
  /// Entries that left the store, by reason.
  public var removals: [RemovalReason: Int]
  /// Records whose bytes did not match their checksum.
  public var corruptRecords: Int
  /// Transactions that failed with `MDB_MAP_FULL` and were retried after evicting.
  public var mapFullRetries: Int
  /// Write transactions committed.
  public var commits: Int
  /// Entries that the store evicted.
  public var evictions: Int { removals.reduce(0) { $0 + ($1.key.isEviction ? $1.value : 0) } }

  /// Entries on disk now, stored by all processes.
  public var entryCount: Int
  /// Bytes of their records, without LMDB's overhead.
  public var payloadByteCount: Int
  /// Bytes on disk of all files in the directory.
  public var diskByteCount: Int
  /// Bytes on disk above the capacity + 10%, for example after the capacity was lowered.
  ///
  /// The eviction thread reduces them.
  public var excessByteCount: Int
  /// Removals in force whose entries are not yet deleted from disk, or not yet marked as stale.
  public var pendingRemovalCount: Int
  /// Entries that the sweep behind these removals has examined so far; 0 if none is in progress.
  public var sweptEntryCount: Int
  /// Bytes in the write queue.
  public var queuedByteCount: Int
  /// Bodies without a response, of all processes: those that arrive, and those that are being deleted.
  public var unfinishedBodyCount: Int
  /// Bytes on disk of these bodies.
  public var arrivingByteCount: Int
}

/// The counters behind ``StoreStatistics``. Each is exact, but they are not read as one snapshot.
final class StoreCounters: Sendable {
  let lookups = StripedLookupCounter()
  /// The counters of this process, by the raw value of ``CounterWord``.
  private let counts = InlineArray<128, Atomic<Int>> { _ in Atomic(0) }
  /// The counters of the directory, which all processes share.
  let activity = ActivityReference()

  deinit {
    lookups.destroy()
  }

  subscript(counter: CounterWord) -> Int { counts[counter.rawValue].load(ordering: .relaxed) }

  /// Counts in this process and for the directory.
  func count(_ count: Int, _ counter: CounterWord) {
    guard count > 0 else { return }
    counts[counter.rawValue].add(count, ordering: .relaxed)
    activity.add(count, counter)
  }

  func countRemovals(_ count: Int, _ reason: RemovalReason) {
    self.count(count, reason.counter)
    if count > 0, reason.isEviction { activity.observers.emit(.evicted(count: count, reason: reason)) }
  }

  /// The entries that left the store, by reason; none for a reason that never applied.
  var removals: [RemovalReason: Int] {
    let counts = RemovalReason.allCases.map { ($0, self[$0.counter]) }
    return Dictionary(uniqueKeysWithValues: counts.filter { $0.1 > 0 })
  }
}

/// Counts of hits and misses, in several stripes.
///
/// Every lookup of every thread counts, and a single counter would move between the processors' caches all the time.
/// Each stripe has cache lines of its own, and threads are spread over the stripes.
///
/// `@unchecked Sendable`: the pointer is constant, and its memory is atomic.
struct StripedLookupCounter: @unchecked Sendable {
  private struct Stripe: ~Copyable {
    let hits = Atomic<Int>(0)
    let misses = Atomic<Int>(0)
    // Two lines of 64 bytes, because processors fetch them in pairs.
    private let padding = InlineArray<14, Int>(repeating: 0)
  }

  private static let stripeCountBits: UInt = 4
  private static let stripeCount = 1 << Int(stripeCountBits)
  private let stripes: UnsafeMutablePointer<Stripe>

  init() {
    let byteCount = Self.stripeCount * MemoryLayout<Stripe>.stride
    stripes = UnsafeMutableRawPointer.allocate(byteCount: byteCount, alignment: 128)
      .bindMemory(to: Stripe.self, capacity: Self.stripeCount)
    for index in 0..<Self.stripeCount { (stripes + index).initialize(to: Stripe()) }
  }

  /// Frees the memory. No thread may count afterwards.
  func destroy() {
    stripes.deinitialize(count: Self.stripeCount)
    UnsafeMutableRawPointer(stripes).deallocate()
  }

  func count(isHit: Bool) {
    let stripe = stripes + ThreadStripe.number(bits: Self.stripeCountBits)
    if isHit {
      stripe.pointee.hits.add(1, ordering: .relaxed)
    } else {
      stripe.pointee.misses.add(1, ordering: .relaxed)
    }
  }

  var hits: Int { sum { $0.pointee.hits.load(ordering: .relaxed) } }
  var misses: Int { sum { $0.pointee.misses.load(ordering: .relaxed) } }

  private func sum(_ value: (UnsafeMutablePointer<Stripe>) -> Int) -> Int {
    (0..<Self.stripeCount).reduce(0) { $0 + value(stripes + $1) }
  }
}
