public import FoundationEssentials
import Glibc

/// The way in which a request through a cache ended.
///
/// The file of events has the position of a case, so a new one is the last.
public enum RequestOutcome: String, Sendable, Hashable, CaseIterable {
  /// Served from the store, fresh, without the origin.
  case hit
  /// Served from the store, stale as its directives permit, without waiting for the origin.
  case stale
  /// Served from the store after the origin validated it.
  case revalidated
  /// Served from the origin, including a validation that brought a new response.
  case miss
  /// Served by the fetch of an identical request in flight.
  case coalesced
  /// Served from the store, stale, because the origin failed or took too long.
  case staleOnError
  /// Sent to the origin without a lookup, such as a POST.
  case bypassed
  /// A 504, because the request forbade the network and no stored response was suitable.
  case unavailable
  /// Ended with an error and without a response. Cancelled requests do not count.
  case failed
}

/// The counts of all processes that use or used a directory.
///
/// They are kept in a file of the directory and outlive the processes. If that file is lost or corrupt, they begin at
/// zero. Each count is exact, but they are not read as one snapshot.
///
/// Sums of corrupt counts wrap around instead of trapping.
public struct DirectoryStatistics: Sendable, Hashable {
  /// The time at which counting began.
  public var since: Date
  /// Requests through a caching client, by outcome.
  public var requests: [RequestOutcome: Int] = [:]
  /// Responses that were not stored, by the ID of the rule that refused them.
  public var storageRefusals: [String: Int] = [:]
  /// Bytes of bodies served from the store without the origin.
  public var hitByteCount = 0
  /// Bytes of bodies received from the origin.
  public var originByteCount: Int { counts[.originBytes, default: 0] }
  /// Validations in the background, after a stale response was served.
  public var backgroundRevalidations: Int { counts[.backgroundRevalidations, default: 0] }
  /// Stale responses because the origin had failed a moment before.
  public var heldOffRequests: Int { counts[.heldOff, default: 0] }
  /// Stale responses because the origin had not responded in time.
  public var unansweredRequests: Int { counts[.staleAfter, default: 0] }
  /// Fetches that ended without a response.
  public var originFailures: Int { counts[.originFailures, default: 0] }
  /// Incomplete responses that were stored: ranges, and the beginnings of bodies that were cut.
  public var storedParts: Int { counts[.storedParts, default: 0] }
  /// Responses of the origin with a status of 500 or more.
  public var originServerErrors: Int { counts[.originServerErrors, default: 0] }

  /// Lookups in memory tiers that found a response.
  public var memoryLookups = 0
  /// Lookups on disk that found a response.
  public var diskLookups = 0
  /// Lookups on disk that found no response.
  public var missedLookups = 0

  /// Responses committed.
  public var writes: Int { counts[.writes, default: 0] }
  /// Record headers updated after a validation.
  public var updates: Int { counts[.updates, default: 0] }
  /// Bytes of the records of the responses committed.
  public var writtenByteCount: Int { counts[.writtenBytes, default: 0] }
  /// Responses that were accepted and not written, as a full queue or disk requires.
  public var droppedWrites: Int { counts[.droppedWrites, default: 0] }
  /// Writes that a newer write replaced in the queue.
  public var supersededWrites: Int { counts[.supersededWrites, default: 0] }
  /// Write transactions committed.
  public var commits: Int { counts[.commits, default: 0] }
  /// Transactions that failed with `MDB_MAP_FULL` and were retried after evicting.
  public var mapFullRetries: Int { counts[.mapFullRetries, default: 0] }
  /// Records whose bytes did not match their checksum.
  public var corruptRecords: Int { counts[.corruptRecords, default: 0] }
  /// Entries that left the store, by reason.
  public var removals: [RemovalReason: Int] {
    Dictionary(uniqueKeysWithValues: RemovalReason.allCases.map { ($0, counts[$0.counter, default: 0]) })
  }
  /// Removals on request, regardless of the number of entries.
  public var purges: Int { counts[.purges, default: 0] }
  /// The number of times that the store was opened.
  public var opens: Int { counts[.opens, default: 0] }
  /// The number of times that the store failed in a process.
  public var failures: Int { counts[.failures, default: 0] }

  /// The counts of the fleet tier; zero without one.
  public var fleet: FleetActivity { FleetActivity(counts: counts, machine: fleetMachine) }

  /// Durations of hits, from the lookup to the decision. One in 64 hits of a thread is measured.
  public var hitLatency = LatencyHistogram()
  /// Durations of requests that waited for the origin, until the head of the response was available.
  public var fetchLatency = LatencyHistogram()

  /// The lease of the machine in its fleet.
  package var fleetMachine: FleetMachineState?
  /// The counters that need no computation.
  private let counts: [CounterWord: Int]

  init(since: Date, counts: [CounterWord: Int]) {
    self.since = since
    self.counts = counts
  }

  /// The number of requests with any outcome.
  public var requestCount: Int { requests.values.reduce(0, &+) }

  /// The number of requests that needed nothing from the origin, fresh or stale.
  public var hitCount: Int { requests[.hit, default: 0] &+ requests[.stale, default: 0] }

  /// The share of requests that needed nothing from the origin, from 0 to 1; nil without a request.
  public var hitRatio: Double? { requestCount > 0 ? Double(hitCount) / Double(requestCount) : nil }

  /// Entries that left the store for space.
  public var evictions: Int { removals.reduce(0) { $0 &+ ($1.key.isEviction ? $1.value : 0) } }
}

extension ActivityFile {
  /// Reads all counters, and the state of the machine. Costs some microseconds.
  ///
  /// - Parameter directory: The path of the file's directory.
  package func statistics(directory: String) -> DirectoryStatistics {
    var result = DirectoryStatistics(
      since: Date(timeIntervalSince1970: Double(number(ActivityLayout.HeaderWord.start * 8)) / 1e9),
      counts: Dictionary(uniqueKeysWithValues: CounterWord.allCases.map { ($0, count($0)) }))
    for outcome in RequestOutcome.allCases { result.requests[outcome] = requestCount(outcome) }
    result.storageRefusals = storageRefusals
    result.hitByteCount = total(.hitBytes)
    result.memoryLookups = total(.memoryLookups)
    result.diskLookups = total(.diskLookups)
    result.missedLookups = total(.missedLookups)
    result.hitLatency = histogram(ActivityLayout.hitLatencyOffset)
    result.fetchLatency = histogram(ActivityLayout.fetchLatencyOffset)
    result.fleetMachine = FleetMachineState.read(directory: directory)
    return result
  }

  /// The number of requests with any outcome.
  var requestCount: Int {
    // A corrupt counter must not trap.
    RequestOutcome.allCases.reduce(0) { $0 &+ requestCount($1) }
  }

  private func requestCount(_ outcome: RequestOutcome) -> Int {
    switch outcome {
    case .hit: total(.freshHits)
    case .stale: total(.staleHits)
    case .revalidated: count(.revalidated)
    case .miss: count(.misses)
    case .coalesced: count(.coalesced)
    case .staleOnError: count(.staleOnError)
    case .bypassed: count(.bypassed)
    case .unavailable: count(.unavailable)
    case .failed: count(.failed)
    }
  }

  private func number(_ byteOffset: Int) -> Int {
    Int(clamping: ActivityLayout.word(base, byteOffset).pointee.load(ordering: .relaxed))
  }

  private func count(_ counter: CounterWord) -> Int { number(ActivityLayout.countersOffset + counter.rawValue * 8) }

  private func total(_ count: ProcessTable.Count) -> Int { ProcessTable(base: base).total(count) }

  private var storageRefusals: [String: Int] {
    var counts: [String: Int] = [:]
    for index in 0..<ActivityLayout.refusalCount {
      let slot = ActivityLayout.refusalsOffset + index * ActivityLayout.refusalByteCount
      let count = number(slot + 8)
      guard count > 0 else { continue }
      let rule = rule(inSlot: index)
      counts[rule.isEmpty ? "unknown" : rule, default: 0] &+= count
    }
    return counts
  }

  private func histogram(_ offset: Int) -> LatencyHistogram {
    LatencyHistogram(
      counts: (0..<LatencyHistogram.bucketCount).map { number(offset + $0 * 8) },
      totalNanoseconds: number(offset + LatencyHistogram.bucketCount * 8))
  }
}
