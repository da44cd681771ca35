import CacheActivity
import FoundationEssentials

/// A document in Prometheus' text format, version 0.0.4.
struct PrometheusText {
  private(set) var text = ""
  private let labels: [(name: String, value: String)]

  /// Creates an empty document.
  ///
  /// - Parameter labels: The labels of every sample.
  init(labels: [(name: String, value: String)]) {
    self.labels = labels
  }

  mutating func counter(_ name: String, _ help: String, _ value: Int) {
    begin(name + "_total", "counter", help)
    sample(name + "_total", String(value))
  }

  /// Adds a counter with a sample for each value of a label.
  mutating func counter(_ name: String, _ help: String, by label: String, _ values: [(value: String, count: Int)]) {
    begin(name + "_total", "counter", help)
    for (value, count) in values { sample(name + "_total", String(count), (label, value)) }
  }

  mutating func gauge(_ name: String, _ help: String, _ value: some Numeric) {
    begin(name, "gauge", help)
    sample(name, "\(value)")
  }

  /// Adds a histogram in seconds, whose buckets end at powers of two of a nanosecond.
  mutating func histogram(
    _ name: String, _ help: String, _ histogram: LatencyHistogram, exponents: ClosedRange<Int>
  ) {
    begin(name, "histogram", help)
    let bounds = exponents.map { (Double(1 << $0) / 1e9, histogram.count(belowPowerOfTwo: $0)) }
    for (bound, count) in bounds { sample(name + "_bucket", String(count), ("le", "\(bound)")) }
    sample(name + "_bucket", String(histogram.count), ("le", "+Inf"))
    sample(name + "_sum", "\(Double(histogram.totalNanoseconds) / 1e9)")
    sample(name + "_count", String(histogram.count))
  }

  private mutating func begin(_ name: String, _ type: String, _ help: String) {
    text += "# HELP \(name) \(help)\n# TYPE \(name) \(type)\n"
  }

  private mutating func sample(_ name: String, _ value: String, _ extra: (name: String, value: String)? = nil) {
    let all = (labels + [extra].compactMap(\.self)).map { "\($0.name)=\"\(Self.escaped($0.value))\"" }
    text += name + (all.isEmpty ? "" : "{" + all.joined(separator: ",") + "}") + " " + value + "\n"
  }

  /// Returns the value of a label with backslashes, quotation marks and line feeds escaped.
  private static func escaped(_ value: String) -> String {
    var escaped = ""
    for scalar in value.unicodeScalars {
      switch scalar {
      case "\\": escaped += "\\\\"
      case "\"": escaped += "\\\""
      case "\n": escaped += "\\n"
      default: escaped.unicodeScalars.append(scalar)
      }
    }
    return escaped
  }
}

extension PrometheusText {
  mutating func add(_ counts: DirectoryStatistics) {
    gauge(
      "urlcache_counters_start_time_seconds", "Unix time at which the counters of the directory began.",
      counts.since.timeIntervalSince1970)
    counter(
      "urlcache_requests", "Requests through the cache, by outcome.", by: "outcome",
      RequestOutcome.allCases.map { ($0.rawValue, counts.requests[$0, default: 0]) })
    counter(
      "urlcache_storage_refusals", "Responses that were not stored, by rule.", by: "rule",
      counts.storageRefusals.sorted { $0.key < $1.key }.map { ($0.key, $0.value) })
    counter("urlcache_hit_bytes", "Bytes of bodies served without the origin.", counts.hitByteCount)
    counter("urlcache_origin_bytes", "Bytes of bodies received from the origin.", counts.originByteCount)
    counter(
      "urlcache_background_revalidations", "Validations after a stale response was served.",
      counts.backgroundRevalidations)
    counter(
      "urlcache_held_off_requests", "Stale responses because the origin had failed a moment before.",
      counts.heldOffRequests)
    counter(
      "urlcache_unanswered_requests", "Stale responses because the origin had not responded in time.",
      counts.unansweredRequests)
    counter(
      "urlcache_stored_parts", "Incomplete responses that were stored: ranges, and beginnings of bodies that were cut.",
      counts.storedParts)
    counter("urlcache_origin_failures", "Fetches that ended without a response.", counts.originFailures)
    counter("urlcache_origin_server_errors", "Responses with a status of 500 or more.", counts.originServerErrors)
    counter(
      "urlcache_lookups", "Lookups by the tier that found a response, or none.", by: "found",
      [("memory", counts.memoryLookups), ("disk", counts.diskLookups), ("none", counts.missedLookups)])
    counter("urlcache_writes", "Responses committed.", counts.writes)
    counter("urlcache_written_bytes", "Bytes of the records committed.", counts.writtenByteCount)
    counter("urlcache_updates", "Record headers updated after a validation.", counts.updates)
    counter("urlcache_dropped_writes", "Responses that were accepted and not written.", counts.droppedWrites)
    counter("urlcache_superseded_writes", "Queued writes that a newer one replaced.", counts.supersededWrites)
    counter("urlcache_commits", "Write transactions committed.", counts.commits)
    counter("urlcache_map_full_retries", "Transactions retried after the map was full.", counts.mapFullRetries)
    counter("urlcache_corrupt_records", "Records that did not match their checksum.", counts.corruptRecords)
    counter(
      "urlcache_removals", "Entries that left the store, by reason.", by: "reason",
      RemovalReason.allCases.map { ($0.rawValue, counts.removals[$0, default: 0]) })
    counter("urlcache_purges", "Removals and purges on request.", counts.purges)
    counter("urlcache_opens", "Times that the store was opened.", counts.opens)
    counter("urlcache_store_failures", "Times that the store failed in a process.", counts.failures)
    if counts.fleet.isUsed { add(counts.fleet) }
    histogram(
      "urlcache_hit_duration_seconds", "Durations of hits; one in 64 of a thread is measured.", counts.hitLatency,
      exponents: 8...30)
    histogram(
      "urlcache_fetch_duration_seconds", "Durations of requests that waited for the origin, until the head.",
      counts.fetchLatency, exponents: 17...36)
  }

  mutating func addContents(
    entryCount: Int, payloadByteCount: Int, diskByteCount: Int, capacityByteCount: Int, excessByteCount: Int,
    pendingPurgeCount: Int, unfinishedBodyCount: Int, arrivingByteCount: Int
  ) {
    gauge("urlcache_entries", "Stored responses.", entryCount)
    gauge("urlcache_payload_bytes", "Bytes of the stored records.", payloadByteCount)
    gauge("urlcache_disk_bytes", "Bytes of the directory's files on disk.", diskByteCount)
    gauge("urlcache_capacity_bytes", "The disk capacity.", capacityByteCount)
    gauge("urlcache_excess_bytes", "Bytes on disk above 110% of the capacity.", excessByteCount)
    gauge("urlcache_pending_purges", "Purges whose responses are hidden but not yet deleted.", pendingPurgeCount)
    gauge("urlcache_unfinished_bodies", "Bodies on disk that arrive, or are being deleted.", unfinishedBodyCount)
    gauge("urlcache_unfinished_body_bytes", "Bytes on disk of these bodies.", arrivingByteCount)
  }
}

extension CacheDirectory {
  /// Returns the statistics of the directory in Prometheus' text format.
  ///
  /// Every sample has the label `directory`. The names and labels stay; later versions may add some.
  public func prometheusText() -> String {
    var document = PrometheusText(labels: [("directory", path)])
    document.addContents(
      entryCount: entryCount, payloadByteCount: payloadByteCount, diskByteCount: diskByteCount,
      capacityByteCount: capacityByteCount, excessByteCount: excessByteCount, pendingPurgeCount: pendingPurgeCount,
      unfinishedBodyCount: unfinishedBodyCount, arrivingByteCount: arrivingByteCount)
    if let statistics { document.add(statistics) }
    return document.text
  }
}

extension ResponseCache {
  /// Returns the statistics of the cache and its directory in Prometheus' text format, for example for `/metrics`.
  ///
  /// The counters are those of all processes that use or used the directory, so one process serves them for all. Every
  /// sample has the label `directory`. The memory tier is this process's own. Without a disk tier, only the memory tier
  /// is included.
  ///
  /// - Complexity: As ``statistics``.
  public func prometheusText() -> String {
    let statistics = statistics
    var document = PrometheusText(labels: [("directory", tiers.connection.directory)])
    document.gauge("urlcache_memory_entries", "Responses in the memory tier.", statistics.memoryEntryCount)
    document.gauge("urlcache_memory_bytes", "Bytes of the memory tier.", statistics.memoryByteCount)
    if let disk = statistics.disk {
      document.addContents(
        entryCount: disk.entryCount, payloadByteCount: disk.payloadByteCount, diskByteCount: disk.diskByteCount,
        capacityByteCount: diskCapacity, excessByteCount: disk.excessByteCount,
        pendingPurgeCount: disk.pendingRemovalCount, unfinishedBodyCount: disk.unfinishedBodyCount,
        arrivingByteCount: disk.arrivingByteCount)
    }
    if let counts = statistics.directory { document.add(counts) }
    return document.text
  }
}
