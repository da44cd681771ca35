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
  /// Bytes waiting to be written.
  public var queuedByteCount: Int
}

/// The counts behind ``StoreStatistics``. Each is exact; together they are no snapshot.
final class StatisticsCounters: Sendable {
  let hits = Atomic<Int>(0)
  let misses = Atomic<Int>(0)
  let stores = Atomic<Int>(0)
  let updates = Atomic<Int>(0)
  let droppedStores = Atomic<Int>(0)
  let damagedRecords = Atomic<Int>(0)
  let fullMaps = Atomic<Int>(0)
  let commits = Atomic<Int>(0)
  private let removals = Monitor<[RemovalReason: Int]>([:])

  func countRemovals(_ count: Int, _ reason: RemovalReason) {
    guard count > 0 else { return }
    removals.withLock { $0[reason, default: 0] += count }
  }

  var removalCounts: [RemovalReason: Int] { removals.withLock { $0 } }
}
