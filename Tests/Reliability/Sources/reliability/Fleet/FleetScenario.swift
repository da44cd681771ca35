/// A fault that the series `fleet` injects.
enum FleetFault: Sendable {
  // Of a machine:
  case kill, reboot, leave, stop, wallClock
  // Of its network to Redis:
  case cut, losesReplies, slow, latePost, lateReply
  // Of Redis:
  case restart, empty, oldDump, suspend, flush, flushWhileSlow, deletedKey, redisClock
  // With Sentinel, each makes another server the primary. The earlier one goes on meanwhile, except if it is killed:
  case failover, primaryKilled, primarySuspended, primarySplit

  /// Whether the fault is one of a machine's network to Redis.
  var isOfNetwork: Bool { (Self.network + [.latePost, .lateReply]).contains(self) }

  static let machine: [FleetFault] = [.kill, .reboot, .leave, .stop]
  static let network: [FleetFault] = [.cut, .losesReplies, .slow]
  static let redis: [FleetFault] = [.restart, .empty, .oldDump, .suspend, .flush, .flushWhileSlow, .deletedKey]
}

/// A scenario of the series `fleet`: the faults that happen while all machines load and purge.
struct FleetScenario: Sendable {
  var name: String
  /// The faults of machines and networks.
  var machineFaults: [FleetFault]
  /// How many of them happen at a time; nil for one for every two machines.
  var maximumFaultCount: Int?
  /// The faults of Redis, one at a time.
  var redisFaults: [FleetFault] = []
  /// The maximum duration of a fault, in leases.
  var duration = 3.0
  /// The maximum pause between two faults of Redis, in seconds.
  var redisPause = 2.0
  /// The number of purges that Redis keeps.
  var logCount = 30
  /// Whether the boot clocks of the machines run at rates that differ by up to 19%.
  var hasDrift = false

  /// Whether machines connect to Redis over TLS.
  var usesTLS = false
  /// Whether there are two servers, and Sentinels. Implies TLS.
  var hasSentinels = false

  static let all: [FleetScenario] = [
    FleetScenario(name: "machines", machineFaults: FleetFault.machine),
    FleetScenario(name: "network", machineFaults: FleetFault.network, hasDrift: true),
    // A post, and the reply to a renewal, that are under way for longer than a purge waits beyond a lease.
    FleetScenario(name: "late posts", machineFaults: [.latePost], maximumFaultCount: 1, hasDrift: true),
    FleetScenario(name: "late replies", machineFaults: [.lateReply], hasDrift: true),
    // So short that leases often outlast the fault.
    FleetScenario(
      name: "trimmed log", machineFaults: [.cut, .slow], duration: 1.5, logCount: 3, hasDrift: true),
    FleetScenario(
      name: "redis", machineFaults: [.cut, .slow], redisFaults: FleetFault.redis, duration: 1.2, redisPause: 1.2),
    // Without other faults purges return at once, so more of them are lost with the data.
    FleetScenario(name: "old data", machineFaults: [], maximumFaultCount: 0, redisFaults: [.oldDump], redisPause: 1.2),
    FleetScenario(
      name: "clocks", machineFaults: [.wallClock, .cut, .stop], redisFaults: [.redisClock], hasDrift: true),
    FleetScenario(
      name: "tls", machineFaults: [.kill] + FleetFault.network, redisFaults: [.restart, .suspend, .flush],
      duration: 1.5,
      hasDrift: true, usesTLS: true),
    FleetScenario(
      name: "failover", machineFaults: [.stop, .cut, .slow], maximumFaultCount: 2,
      redisFaults: [.failover, .primaryKilled, .primarySuspended, .primarySplit], duration: 1.5, redisPause: 3,
      hasDrift: true, hasSentinels: true),
    FleetScenario(
      name: "together", machineFaults: FleetFault.machine + FleetFault.network + [.wallClock],
      redisFaults: FleetFault.redis + [.redisClock], hasDrift: true),
  ]
}
