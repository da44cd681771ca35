import CacheModel
import Glibc
import Synchronization

/// The layout of the file of shared counters, in the machine's byte order: words of 64 bits, each read and written
/// atomically.
///
/// | Byte | Contents |
/// |---|---|
/// | 0 | the header: ``HeaderWord`` |
/// | 1,024 | 49 rows of processes: ``ProcessTable`` |
/// | 16,704 | ``CounterWord`` |
/// | 17,728 | 128 rules that refuse to store: a hash of the rule's ID, a count, and the ID in 48 bytes |
/// | 25,920 | the histogram of hits |
/// | 28,480 | the histogram of fetches |
/// | 31,040 | 640 recent refusals: ``RecentRefusals`` |
///
/// Each histogram has ``LatencyHistogram/bucketCount`` words, and the sum of its durations in the next word.
enum ActivityLayout {
  /// `LMBCCNT3` on a little-endian machine. The last character is the version of this layout.
  static let magic: UInt64 = 0x3354_4e43_4342_4d4c
  static let byteCount = 36_864
  static let countersOffset = 16_704
  static let refusalsOffset = 17_728
  static let refusalByteCount = 64
  static let refusalCount = 128
  static let maximumRuleByteCount = 48
  static let hitLatencyOffset = 25_920
  static let fetchLatencyOffset = 28_480
  static let recentRefusalsOffset = 31_040

  /// A hit is timed if the count of its stripe is a multiple of this, which is a power of two.
  static let hitSampleInterval: UInt64 = 64

  /// No counter reaches this value in use, so a larger one is corruption.
  static let implausibleCount: UInt64 = 1 << 60

  /// The maximum of ``HeaderWord/grantedEvents``.
  static let maximumGrantedEvents: UInt64 = 4096

  /// The words of the header.
  enum HeaderWord {
    static let magic = 0
    static let byteCount = 1
    /// The time at which the counts began, in nanoseconds since 1970.
    static let start = 2
    /// A random number, the seed of the digests in ``RecentRefusals``.
    static let digestSeed = 3
    /// By which rules the program that opened the directory last caches: 1 those of a private cache, 2 those of a
    /// shared one; 0 if no program has recorded it.
    static let cachingMode = 4
    /// The number of the file of events, which changes with the file.
    static let eventFile = 17
    /// The number of requests that may still be recorded. Every process that watches sets it again and again.
    ///
    /// In a cache line of its own, because every request reads it. A value above ``maximumGrantedEvents`` means none:
    /// it is corruption, or several threads took the last one.
    static let grantedEvents = 24
  }

  static func word(_ base: UnsafeMutableRawPointer, _ byteOffset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (base + byteOffset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// The time in nanoseconds since 1970.
  static var now: UInt64 {
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    return UInt64(now.tv_sec) * 1_000_000_000 + UInt64(now.tv_nsec)
  }

  /// Returns a hash of a rule's ID that is the same in all processes; never 0.
  static func hash(ofRule rule: String) -> UInt64 {
    // FNV-1a.
    max(rule.utf8.reduce(0xcbf2_9ce4_8422_2325) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }, 1)
  }
}

/// The counters of a directory that change less often than once per hit. The raw value is the position in the file.
package enum CounterWord: Int, CaseIterable, Sendable {
  case misses = 0
  case revalidated
  case coalesced
  case staleOnError
  case bypassed
  case unavailable
  case failed

  case heldOff = 12
  case staleAfter

  case backgroundRevalidations = 16
  case originBytes
  case originFailures
  case originServerErrors

  case writes = 32
  case updates
  case droppedWrites
  case supersededWrites
  case writtenBytes
  case commits
  case mapFullRetries
  case corruptRecords
  case purges
  case failures
  case opens

  case storedParts = 48

  case replaced = 64
  case overCapacity
  // The next number is unused. Files may contain it.
  case tooManyVariants = 67
  case requested
  case corrupt

  // Of a fleet tier; see ``FleetActivity``.
  case sharedLookups = 96
  case sharedHits
  case sharedMisses
  case fetchWaits
  case failedSharedLookups
  case sharedStores
  case refusedObjects
  case postedPurges
  case receivedPurges
  case leaseRenewals
  case cutOffMilliseconds
  case reconnects
  case lostLogs

  var isOfFleet: Bool { rawValue >= Self.sharedLookups.rawValue }
}

extension RemovalReason {
  package var counter: CounterWord {
    switch self {
    case .replaced: .replaced
    case .overCapacity: .overCapacity
    case .tooManyVariants: .tooManyVariants
    case .requested: .requested
    case .corrupt: .corrupt
    }
  }
}
