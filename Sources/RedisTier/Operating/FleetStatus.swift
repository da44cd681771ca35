import FleetRedis

/// The state of a fleet at one moment, as Redis knows it.
package struct FleetStatus: Sendable {
  /// A registered machine.
  package struct Machine: Sendable {
    /// The machine's ID, which changes when the machine is restarted.
    package let id: String
    /// The name of the host that last renewed the lease; empty if it has none.
    package let host: String
    /// The time since the last renewal in seconds, by Redis's clock; nil if it is not known.
    package let secondsSinceRenewal: Double?
    /// The number of the last purge that the machine has confirmed.
    package let number: UInt64
  }

  /// A purge that waits for machines.
  package struct WaitingPurge: Sendable {
    /// Its number in the log.
    package let number: UInt64
    /// The number of registered machines that have not confirmed it.
    package let machineCount: Int
  }

  /// The ID of the present life of the log.
  package let epoch: String
  /// The length of a lease in seconds.
  package let leaseSeconds: Double
  /// The number of the last purge.
  package let lastNumber: UInt64
  /// The number of the last purge that was dropped from the log.
  package let floor: UInt64
  /// Whether no lease of an earlier epoch can be valid, so that purges need not wait for one.
  package let isMature: Bool
  /// Whether the next renewal or purge starts a new epoch, because Redis has restarted or lost data.
  package let isLost: Bool
  /// The registered machines, by host and ID.
  package let machines: [Machine]
  /// The purges that wait for machines, oldest first.
  package let waiting: [WaitingPurge]

  /// The purges that a machine has not confirmed.
  package func lag(of machine: Machine) -> UInt64 { lastNumber - min(lastNumber, machine.number) }

  /// The remaining time of a machine's lease in seconds, at most; negative after its end. Nil if it is not known.
  package func leaseSecondsLeft(of machine: Machine) -> Double? {
    machine.secondsSinceRenewal.map { leaseSeconds - $0 }
  }

  /// - Parameter run: The ID of the server's process.
  init(_ reply: RedisReply, _ fleet: FleetAddress, run: [UInt8]) throws(RedisTierError) {
    let parts = try reply.asElements(atLeast: 6)
    let control = try parts[0].asHash()
    guard !control.isEmpty else { throw FleetConsole.unknownFleet(fleet) }
    func number(_ name: String) throws(RedisTierError) -> UInt64 {
      try RedisReply.bytes(control[Array(name.utf8)] ?? []).asCount()
    }
    let id = control[Array("epoch".utf8)] ?? []
    let settings = try FleetSettings(fleet, epoch: id)
    let now = try parts[4].asTime()
    var machines: [Machine] = []
    for (node, cursor) in try parts[2].asPairs() {
      let renewal = Self.renewal(control[Array("at:".utf8) + node])
      machines.append(
        Machine(
          id: String(decoding: node, as: UTF8.self), host: renewal?.host ?? "",
          secondsSinceRenewal: renewal.map { max(0, now - $0.time) },
          number: try RedisReply.bytes(cursor).asCount()))
    }
    epoch = String(decoding: id, as: UTF8.self)
    leaseSeconds = Double(settings.lease) / 1e9
    lastNumber = try number("seq")
    floor = try number("floor")
    isMature = control[Array("mature".utf8)] == [UInt8(ascii: "1")]
    let keptCount = try parts[1].asCount()
    let nodeCount = try number("nodes")
    let isOtherServer = control[Array("run".utf8)] != run + (try parts[5].asBytes())
    isLost = isOtherServer || keptCount != lastNumber - min(floor, lastNumber) || nodeCount != UInt64(machines.count)
    self.machines = machines.sorted { ($0.host, $0.id) < ($1.host, $1.id) }
    var waiting: [WaitingPurge] = []
    for (_, value) in try parts[3].asPairs() {
      let number = try RedisReply.bytes(value).asCount()
      waiting.append(WaitingPurge(number: number, machineCount: machines.count { $0.number < number }))
    }
    self.waiting = waiting
  }

  /// Parses the seconds, the microseconds and the host's name that a renewal leaves.
  private static func renewal(_ bytes: [UInt8]?) -> (time: Double, host: String)? {
    let parts = String(decoding: bytes ?? [], as: UTF8.self)
      .split(separator: " ", maxSplits: 2, omittingEmptySubsequences: false)
    guard parts.count == 3, let seconds = Double(parts[0]), let microseconds = Double(parts[1]) else { return nil }
    return (seconds + microseconds / 1e6, String(parts[2]))
  }
}
