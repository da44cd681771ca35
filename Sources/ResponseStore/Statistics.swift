import Glibc
import Synchronization

/// Why an entry left the store.
public enum RemovalReason: String, Sendable, CaseIterable {
  /// A newer response took its place.
  case replaced
  /// Room was needed.
  case overCapacity
  /// Room was needed, and it could neither be served nor validated any more.
  case expired
  /// Its key had too many variants.
  case tooManyVariants
  /// It was removed or purged on demand.
  case requested
  /// Its bytes did not match their checksum.
  case damaged

  /// Whether the store removed it by itself, for room.
  public var isEviction: Bool {
    switch self {
    case .overCapacity, .expired, .tooManyVariants: true
    case .replaced, .requested, .damaged: false
    }
  }
}

/// What the store has done in this process, and what it holds.
public struct StoreStatistics: Sendable, Hashable {
  /// Lookups that found a response.
  public var hits: Int
  /// Lookups that found none.
  public var misses: Int
  /// Responses committed.
  public var stores: Int
  /// Heads updated after a validation.
  public var updates: Int
  /// Responses that were handed in and not written: too large, removed before they were written, a full queue, a full disk,
  /// or an update of a response that has gone.
  public var droppedStores: Int
  /// Responses and updates in whose place a newer one for the same key and Vary selection was queued, before they were
  /// written.
  public var supersededStores: Int
  /// Entries that left the store, by reason.
  public var removals: [RemovalReason: Int]
  /// Records whose bytes did not match their checksum.
  public var damagedRecords: Int
  /// Transactions that met a full map and were tried again after evicting.
  public var fullMaps: Int
  /// Write transactions committed.
  public var commits: Int
  /// Entries that left the store to make room.
  public var evictions: Int { removals.reduce(0) { $0 + ($1.key.isEviction ? $1.value : 0) } }

  /// Entries on disk now, of all processes.
  public var entryCount: Int
  /// Bytes of their heads and bodies, without the store's own.
  public var payloadByteCount: Int
  /// Bytes of the directory's files on disk.
  public var diskByteCount: Int
  /// Bytes on disk beyond the capacity and its 10 %, as after the capacity was lowered. The eviction thread works them off.
  public var excessByteCount: Int
  /// Removals whose entries are hidden and still to be deleted from the disk.
  public var pendingRemovalCount: Int
  /// Bytes waiting to be written.
  public var queuedByteCount: Int
}

/// The counts behind ``StoreStatistics``. Each is exact; together they are no snapshot.
final class StatisticsCounters: Sendable {
  let lookups = LookupCounts()
  let stores = Atomic<Int>(0)
  let updates = Atomic<Int>(0)
  let droppedStores = Atomic<Int>(0)
  let supersededStores = Atomic<Int>(0)
  let damagedRecords = Atomic<Int>(0)
  let fullMaps = Atomic<Int>(0)
  let commits = Atomic<Int>(0)
  private let removals = Monitor<[RemovalReason: Int]>([:])

  deinit {
    lookups.destroy()
  }

  func countRemovals(_ count: Int, _ reason: RemovalReason) {
    guard count > 0 else { return }
    removals.withLock { $0[reason, default: 0] += count }
  }

  var removalCounts: [RemovalReason: Int] { removals.withLock { $0 } }
}

/// Hits and misses. Every lookup of every thread counts one, so a single counter would travel between the processors'
/// caches all the time: there are several, each on cache lines of its own, and threads are spread over them.
///
/// `@unchecked Sendable`: the pointer is constant, and what it leads to is atomic.
struct LookupCounts: @unchecked Sendable {
  private struct Stripe: ~Copyable {
    let hits = Atomic<Int>(0)
    let misses = Atomic<Int>(0)
    // Two lines of 64 bytes, as processors fetch them in pairs.
    private let padding = InlineArray<14, Int>(repeating: 0)
  }

  private static let stripeCountBits = 4
  private let stripes: UnsafeMutablePointer<Stripe>

  init() {
    let count = 1 << Self.stripeCountBits
    let byteCount = count * MemoryLayout<Stripe>.stride
    stripes = UnsafeMutableRawPointer.allocate(byteCount: byteCount, alignment: 128)
      .bindMemory(to: Stripe.self, capacity: count)
    for index in 0..<count { (stripes + index).initialize(to: Stripe()) }
  }

  /// Frees the memory; nobody may count any more.
  func destroy() {
    stripes.deinitialize(count: 1 << Self.stripeCountBits)
    UnsafeMutableRawPointer(stripes).deallocate()
  }

  func count(isHit: Bool) {
    // A thread is known by an address; multiplying spreads what differs over the upper bits.
    let thread = UInt(pthread_self()) &* 0x9E37_79B9_7F4A_7C15
    let stripe = stripes + Int(thread >> (64 - UInt(Self.stripeCountBits)))
    if isHit {
      stripe.pointee.hits.add(1, ordering: .relaxed)
    } else {
      stripe.pointee.misses.add(1, ordering: .relaxed)
    }
  }

  var hits: Int { sum { $0.pointee.hits.load(ordering: .relaxed) } }
  var misses: Int { sum { $0.pointee.misses.load(ordering: .relaxed) } }

  private func sum(_ value: (UnsafeMutablePointer<Stripe>) -> Int) -> Int {
    (0..<(1 << Self.stripeCountBits)).reduce(0) { $0 + value(stripes + $1) }
  }
}
