import CacheActivity

/// The counts of a fleet tier.
extension PrometheusText {
  mutating func add(_ counts: FleetActivity) {
    counter("urlcache_fleet_lookups", "Lookups of shared responses in Redis.", counts.lookups)
    counter(
      "urlcache_fleet_requests", "Requests that asked the fleet, by result.", by: "result",
      [("hit", counts.sharedHits), ("miss", counts.sharedMisses), ("failed", counts.failedLookups)])
    counter("urlcache_fleet_waits", "Requests that waited for the fetch of another machine.", counts.fetchWaits)
    counter("urlcache_fleet_stores", "Responses shared with the fleet.", counts.sharedStores)
    counter(
      "urlcache_fleet_refused_responses", "Shared responses that were corrupt, foreign or purged.",
      counts.refusedObjects)
    counter(
      "urlcache_fleet_purges", "Purges of the fleet, by direction.", by: "direction",
      [("posted", counts.postedPurges), ("received", counts.receivedPurges)])
    counter("urlcache_fleet_lease_renewals", "Renewals of the machine's lease.", counts.leaseRenewals)
    if let isValid = counts.isLeaseValid {
      gauge(
        "urlcache_fleet_lease_valid", "1 if the machine has a valid lease; 0 if it validates each stored response.",
        isValid ? 1 : 0)
    }
    gauge(
      "urlcache_fleet_cut_off_seconds", "Time without a valid lease, including the present one.",
      Double(counts.cutOffMilliseconds) / 1000)
    counter("urlcache_fleet_reconnects", "Times that following the purges failed.", counts.reconnects)
    counter(
      "urlcache_fleet_lost_logs", "Times that everything stored was distrusted, as purges may have been unknown.",
      counts.lostLogs)
  }
}
