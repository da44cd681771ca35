public import FoundationEssentials

/// The failure of a command to Redis, or of the fleet tier.
///
/// No description contains a password, a key, a URL or a value. The reason quotes an error of Redis, which can name the
/// user, a command, and another node of a cluster.
public struct RedisTierError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The kinds of failure.
  public enum Code: Sendable, Hashable, CaseIterable {
    /// The configuration cannot work: a malformed URL, unusable certificates, a short secret, an impossible lease.
    case invalidConfiguration
    /// No connection could be made.
    case cannotConnect
    /// No connection by TLS could be made, because a certificate or its key is not valid, the certificate has another
    /// name, or only one of both sides uses TLS.
    case tlsFailed
    /// No majority of the Sentinels named the same primary server.
    case noPrimary
    /// The server refused the password, the user, or a command that the user lacks.
    case accessDenied
    /// The connection ended or failed during a command.
    case connectionLost
    /// No reply arrived in time.
    case timedOut
    /// The reply is not RESP2, or not what the command returns.
    case badReply
    /// The server replied with an error that is none of the others.
    case serverError
    /// The server has reached its `maxmemory`, and its policy evicts nothing.
    case outOfMemory
    /// The server has reached its `maxclients`.
    case tooManyClients
    /// The server is a node of a Redis Cluster.
    case cluster
    /// The server lacks a feature that the protocol needs.
    case missingFeature
    /// The server is a replica, still loads its data, or is no longer the primary that the Sentinels name.
    case wrongRole
    /// The fleet uses another lease or another secret.
    case otherFleetSettings
    /// The fleet file or the follower's lock cannot be used, or belongs to another fleet.
    case unusableDirectory
    /// A purge could not be posted, so other machines do not obey it yet. All processes of this machine do, and the
    /// machine posts it when Redis can be reached. Purge again to know when the other machines obey.
    case notPosted
    /// A purge was posted, and some machines may not obey it yet. The machine that posted it keeps it until they do or
    /// their leases have ended, and posts it again if Redis loses it. Purge again to know when all machines obey.
    case unconfirmed
    /// Redis knows no fleet of this name.
    case unknownFleet
  }

  /// The kind of failure.
  public let code: Code
  /// A short description of the cause.
  public let reason: String
  /// The first word of an error that the server replied, such as `NOSCRIPT`.
  package let serverCode: String?

  /// Creates an error.
  public init(_ code: Code, _ reason: String) {
    self.init(code, reason, serverCode: nil)
  }

  init(_ code: Code, _ reason: String, serverCode: String?) {
    self.code = code
    self.reason = reason
    self.serverCode = serverCode
  }

  /// The cause and the remedy.
  public var description: String { "The fleet tier failed: \(reason). \(remedy)." }

  private var remedy: String {
    switch code {
    case .invalidConfiguration: "Correct the configuration"
    case .cannotConnect: "Check the address, and whether redis-server runs"
    case .tlsFailed:
      "Check whether the server uses TLS, the authority file, the client certificate, and the name in the certificate "
        + "of the server"
    case .noPrimary:
      "Check the Sentinels and the name of the primary in the URL; during a failover, the tier asks again by itself"
    case .accessDenied: "Check the user, its password and its permissions"
    case .connectionLost, .timedOut: "The tier reconnects by itself; check redis-server and the network"
    case .badReply: "Check whether the address is that of a redis-server, and that its keys are this library's"
    case .serverError: "Check the log of redis-server"
    case .outOfMemory: "Raise maxmemory of redis-server, or set the policy volatile-lru"
    case .tooManyClients: "Raise maxclients of redis-server, or end clients"
    case .cluster: "Give the address of a server that is not in a cluster"
    case .missingFeature: "Use Redis 7.0 or later, or Valkey, with all commands that the article on fleets lists"
    case .wrongRole:
      "Give the address of the primary server, or wait until it has loaded its data; with Sentinel, the tier finds it "
        + "by itself"
    case .otherFleetSettings: "Use the lease and the secret of the other machines, or another fleet name"
    case .unusableDirectory:
      "Open the directory with its own fleet, or remove LMDBURLCache.fleet while no process uses it"
    case .notPosted: "At most this machine obeys it; purge again when Redis can be reached"
    case .unknownFleet: "Check the address and the fleet's name, and whether a machine is running"
    case .unconfirmed:
      "Each machine obeys at the latest when its lease ends, or when a purge that Redis has lost is posted again; "
        + "purge again to be sure"
    }
  }
}

extension RedisTierError: LocalizedError {
  /// The ``description``.
  public var errorDescription: String? { description }
}
