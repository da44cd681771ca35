extension RedisConnection {
  /// The ID of the server's process, from `INFO`.
  ///
  /// - Throws: `RedisTierError` if the server cannot serve a fleet: it is a replica, still loads its data, is a node of
  ///   a Redis Cluster, or is a Sentinel.
  package func serverRun(timeout: Duration? = nil) throws(RedisTierError) -> [UInt8] {
    let text = try command(["INFO"], timeout: timeout).asText()
    var run: [UInt8]?
    for line in text.split(whereSeparator: \.isNewline) {
      switch line {
      case "role:slave", "loading:1":
        throw RedisTierError(.wrongRole, "the Redis server is a replica, or still loads its data")
      // Redis, and Valkey.
      case "redis_mode:sentinel", "server_mode:sentinel":
        throw RedisTierError(
          .wrongRole, "the server is a Sentinel, which stores nothing; name it in a URL with redis+sentinel://")
      case "cluster_enabled:1":
        throw RedisTierError(.cluster, "the server runs in cluster mode")
      default:
        if line.hasPrefix("run_id:") { run = Array(line.dropFirst(7).utf8) }
      }
    }
    guard let run, !run.isEmpty else {
      throw RedisTierError(.missingFeature, "the server does not tell its run_id in INFO")
    }
    return run
  }

  /// Checks, with Sentinel, that the server is still the primary. Without Sentinel there is nothing to ask.
  ///
  /// Call this after a reply on which a lease or the end of a purge rests. See ``Sentinels``.
  package func checkPrimary(timeout: Duration) throws(RedisTierError) {
    guard let sentinels else { return }
    guard try sentinels.primary(within: timeout) == address else {
      throw RedisTierError(.wrongRole, "the Sentinels name another server after a failover")
    }
  }
}
