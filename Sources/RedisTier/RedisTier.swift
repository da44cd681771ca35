public import CachingClient
public import FleetRedis
public import FoundationEssentials

/// A tier on Redis that the caches of several machines share: a purge holds on all of them when it returns.
///
///     var options = LMDBURLCache.Options()
///     options.fleet = try RedisTier(url: "redis://10.0.0.5:6379", secret: secret)
///     let cache = try LMDBURLCache(
///       directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20, options: options)
///     try await cache.purge(.host("api.example.com"))   // on all machines
///
/// Each machine has a lease, which it renews while it asks Redis for purges. Without a valid lease it serves nothing
/// stored without validating it at the origin. A purge returns when each machine has applied it, or its lease has
/// ended.
///
/// One process of each machine follows the purges, on its own thread with one connection. The tier connects when a
/// cache joins, and reconnects by itself. All members can be called from any thread. One tier can serve several caches.
public struct RedisTier: JoinableFleetTier {
  let settings: FleetSettings

  /// Creates a tier. It does not connect yet.
  ///
  /// - Parameters:
  ///   - url: `redis://[[user]:password@]host[:port]`, `redis+sentinel://[[user]:password@]host[:port],…/name` with all
  ///     Sentinels and the name by which they know the primary, or `unix://[[user]:password@]/path/of/socket`. With
  ///     `rediss` instead of `redis`, connections use TLS. User and password can be percent-encoded. Without Sentinel,
  ///     the server must be the only one that accepts writes.
  ///   - secret: At least 32 random bytes, the same for all machines of the fleet. The names of shared responses are
  ///     digests under it. It is not sent to Redis.
  ///   - configuration: The other settings.
  /// - Throws: `RedisTierError` with the code `invalidConfiguration`.
  public init(url: String, secret: Data, configuration: Configuration = Configuration()) throws(RedisTierError) {
    settings = try FleetSettings(url: url, secret: Array(secret), configuration)
  }

  package func join(directory: String, node: FleetNode) throws -> any FleetMembership {
    Membership(settings, file: try FleetFile(directory: directory, settings: settings), node: node)
  }
}
