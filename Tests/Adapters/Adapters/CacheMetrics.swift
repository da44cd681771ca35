import LMDBURLCache
import Metrics
import Synchronization

/// Publishes the statistics of one cache.
final class CacheMetrics: Sendable {
  private let counters = Mutex<[String: (counter: Counter, total: Int)]>([:])
  private let memoryByteCount = Gauge(label: "lmdburlcache_memory_bytes")
  private let diskByteCount = Gauge(label: "lmdburlcache_disk_bytes")
  private let diskEntryCount = Gauge(label: "lmdburlcache_disk_entries")
  private let queuedByteCount = Gauge(label: "lmdburlcache_queued_bytes")
  private let unfinishedBodyCount = Gauge(label: "lmdburlcache_unfinished_bodies")
  private let arrivingByteCount = Gauge(label: "lmdburlcache_unfinished_body_bytes")
  // Totals of all processes of the directory. They began before this process, which may not add them again.
  private let heldOffRequests = Gauge(label: "lmdburlcache_directory_held_off_requests")
  private let unansweredRequests = Gauge(label: "lmdburlcache_directory_unanswered_requests")

  /// Publishes until the task is cancelled.
  func publish(_ cache: LMDBURLCache, every interval: Duration) async throws {
    while true {
      publish(cache.statistics)
      try await Task.sleep(for: interval)
    }
  }

  /// Publishes once.
  func publish(_ statistics: LMDBURLCache.Statistics) {
    let requests = statistics.requests
    count(requests.hits, "hits")
    count(requests.misses, "misses")
    count(requests.revalidations, "revalidations")
    count(requests.coalesced, "coalesced")
    count(requests.staleServed, "stale_served")
    count(requests.stored, "stored")
    for (rule, total) in requests.storageRefusals { count(total, "refused", dimensions: [("rule", rule)]) }
    memoryByteCount.record(statistics.memoryByteCount)
    guard let disk = statistics.disk else { return }
    count(disk.evictions, "evictions")
    count(disk.droppedWrites, "dropped_writes")
    count(disk.corruptRecords, "corrupt_records")
    diskByteCount.record(disk.diskByteCount)
    diskEntryCount.record(disk.entryCount)
    queuedByteCount.record(disk.queuedByteCount)
    unfinishedBodyCount.record(disk.unfinishedBodyCount)
    arrivingByteCount.record(disk.arrivingByteCount)
    guard let directory = statistics.directory else { return }
    heldOffRequests.record(directory.heldOffRequests)
    unansweredRequests.record(directory.unansweredRequests)
  }

  /// Adds the growth of a total since the last call. A smaller total is that of a store that was reopened.
  private func count(_ total: Int, _ name: String, dimensions: [(String, String)] = []) {
    counters.withLock { counters in
      let key = name + dimensions.map { "," + $0.1 }.joined()
      let last = counters[key] ?? (Counter(label: "lmdburlcache_" + name, dimensions: dimensions), 0)
      last.counter.increment(by: total >= last.total ? total - last.total : total)
      counters[key] = (last.counter, total)
    }
  }
}
