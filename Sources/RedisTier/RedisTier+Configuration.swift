public import FleetRedis
import FoundationEssentials

extension RedisTier {
  /// The immutable settings of a tier.
  ///
  /// All machines of a fleet must have the same ``lease``, and the same secret, or Redis refuses them.
  public struct Configuration: Sendable {
    /// The name of the fleet, which is part of every key; `default` by default.
    ///
    /// Fleets with different names share nothing. At most 64 letters, digits, `-`, `_` and `.`.
    public var fleetName = "default"

    /// Returns the password for Redis; nil, the default, uses that of the URL.
    ///
    /// Called for each connection, on a thread that may block. The password is neither kept nor logged.
    public var password: (@Sendable () throws -> String)?

    /// The certificates of connections by TLS, which a URL with `rediss` selects; the system's by default.
    public var tls = RedisTLS()

    /// The user that logs in to Sentinels; nil, the default, for their default user. The user of the URL logs in to
    /// Redis alone.
    public var sentinelUser: String?

    /// Returns the password for Sentinels; nil, the default, for Sentinels without a password.
    ///
    /// Called like ``password``.
    public var sentinelPassword: (@Sendable () throws -> String)?

    /// How long a machine may serve stored responses after it has asked Redis for purges; 10 seconds by default.
    ///
    /// A purge waits 1.25 times this and 0.25 seconds for a machine that does not respond. A machine that cannot reach
    /// Redis for longer validates each response at the origin. From 200 ms to 1 hour, in whole milliseconds.
    public var lease: Duration = .seconds(10)

    /// The maximum time for connecting to Redis, and for each command of the protocol of purges; 2 seconds by default.
    public var commandTimeout: Duration = .seconds(2)

    /// The maximum time for a lookup in Redis; 40 milliseconds by default. Then the request goes to the origin.
    ///
    /// It includes connecting, also to Sentinels and by TLS, and waiting for one of the ``objectConnectionCount``
    /// connections. While Redis does not reply, the first three lookups of a process take this long; later requests go
    /// to the origin at once for a while.
    public var lookupTimeout: Duration = .milliseconds(40)

    /// The number of threads, each with a connection, that look up and store shared responses; 4 by default, at least
    /// 1.
    public var objectConnectionCount = 4

    /// The maximum size of a shared body in bytes; 1 MiB by default. 0 shares no responses.
    ///
    /// A body of 1 MiB keeps Redis busy for 1 to 4 ms, in which purges wait.
    public var maximumSharedBodyByteCount = 1 << 20

    /// The maximum time for which Redis keeps a shared response; one day by default, in whole seconds.
    public var maximumSharedLifetime: Duration = .seconds(86_400)

    /// How long a fetch for the fleet keeps other machines waiting after its machine has died; 5 seconds by default.
    public var fetchLockLease: Duration = .seconds(5)

    /// How long a request waits for the fetches of other machines; 10 seconds by default. Then it fetches, too.
    ///
    /// A request with a shorter time limit waits only for that time.
    public var maximumFetchWait: Duration = .seconds(10)

    /// The tolerated difference between the wall clocks of a machine and of Redis; 5 seconds by default.
    ///
    /// A purge by date covers this much more time. A machine whose clock differs by more removes everything instead.
    public var clockTolerance: Duration = .seconds(5)

    /// The action of a machine on its stored responses when purges may be unknown to it; ``LostLogAction/validate`` by
    /// default.
    ///
    /// That is so if its lease had ended when Redis lost data or was restarted, or if it missed more than
    /// ``maximumLogCount`` purges, and when a directory joins the fleet.
    public var onLostLog = LostLogAction.validate

    /// The number of purges that Redis keeps; 20,000 by default, which take 2 to 13 MB.
    ///
    /// A machine that missed more than these distrusts everything that it has stored when it returns (``onLostLog``).
    public var maximumLogCount = 20_000

    /// The partitions whose responses are shared; only the empty one by default.
    public var sharedPartitions: Set<String> = [""]

    /// The machine's wall clock, in seconds since 1970, by which dates of purges are compared with those of Redis.
    var wallClock: @Sendable () -> Double = { Date().timeIntervalSince1970 }

    /// Creates the default settings.
    public init() {}
  }

  /// The action of a machine on its stored responses when purges may be unknown to it.
  public enum LostLogAction: Sendable, Hashable, CaseIterable {
    /// Each response is validated at the origin before its next use. No stale window counts for it.
    ///
    /// A purged response that the origin still confirms is used again, as after a soft purge.
    case validate
    /// All responses are removed.
    case remove
  }
}
