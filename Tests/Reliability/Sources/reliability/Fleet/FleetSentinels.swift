import Glibc

/// Two Redis servers, of which one replicates the other, and three Sentinels, over TLS.
final class FleetSentinels: Sendable {
  let servers: [FleetRedis]
  let ports: [UInt16]
  private let sentinels: [FleetRedis]
  private let sentinelPorts: [UInt16]
  /// The networks of the first two Sentinels and of the other server to each server, but not those of machines.
  private let inside: [FleetProxy]
  /// The networks of the last Sentinel to all others, and of all others to it.
  private let toLast, fromLast: FleetProxy

  /// - Parameter environment: Returns the variables of a server for the ports of its network.
  init(directory: String, certificates: FleetCertificates, environment: (String) -> [String: String]) {
    makeDirectory(directory)
    let ports = [FleetEndpoint.freePort(), FleetEndpoint.freePort()]
    let inside = ports.map { FleetProxy([(nil, .tcp($0))]) }
    let sentinelPorts = (0..<3).map { _ in FleetEndpoint.freePort() }
    let toLast = FleetProxy([(nil, .tcp(sentinelPorts[2]))])
    let fromLast = FleetProxy((ports + sentinelPorts.dropLast()).map { (nil, .tcp($0)) })
    let ofLast = environment(fromLast.ports)
    let environment = environment((inside.map(\.ports) + [toLast.ports]).joined(separator: ","))
    servers = ports.enumerated().map { index, port in
      FleetRedis(
        directory: "\(directory)/\(index)", environment: environment,
        options: certificates.options(port: port) + ["--repl-diskless-sync-delay", "0"]
          + (index == 0 ? [] : ["--replicaof", "127.0.0.1", "\(ports[0])"]))
    }
    sentinels = sentinelPorts.enumerated().map { index, port in
      FleetRedis(
        directory: "\(directory)/s\(index)", environment: index == 2 ? ofLast : environment,
        options: certificates.options(port: port),
        sentinel: """
          sentinel monitor fleet 127.0.0.1 \(ports[0]) 2
          sentinel down-after-milliseconds fleet 500
          sentinel failover-timeout fleet 3000
          """)
    }
    (self.ports, self.sentinelPorts) = (ports, sentinelPorts)
    (self.inside, self.toLast, self.fromLast) = (inside, toLast, fromLast)
    for sentinel in sentinels {
      wait(seconds: 30) { sentinel.command("INFO sentinel")?.contains("slaves=1,sentinels=3") == true }
    }
  }

  /// All servers that a machine connects to.
  var endpoints: [FleetEndpoint] { (ports + sentinelPorts).map { .tcp($0) } }

  /// The URL with all Sentinels, or for a machine that believes a single one.
  ///
  /// - Parameter number: The number of such a machine; nil for all Sentinels.
  func url(believingOne number: Int? = nil) -> String {
    let ports = number.map { [sentinelPorts[$0 % sentinelPorts.count]] } ?? sentinelPorts
    return "rediss+sentinel://" + ports.map { "127.0.0.1:\($0)" }.joined(separator: ",") + "/fleet"
  }

  func kill() {
    for server in sentinels + servers { server.kill() }
  }

  private func wait(seconds: Double, until condition: () -> Bool) {
    let end = now() + seconds
    while now() < end, !condition() { usleep(20_000) }
  }

  /// The server that the first Sentinel names.
  private var primary: Int {
    let reply = sentinels[0].command("SENTINEL GET-MASTER-ADDR-BY-NAME fleet") ?? ""
    return reply.contains("\(ports[1])\r\n") ? 1 : 0
  }

  enum Failover: Sendable { case ordered, killed, suspended, split }

  /// Makes the replica the primary. The earlier primary goes on as one for a while, and then becomes its replica.
  ///
  /// - Parameters:
  ///   - pause: How long that takes, in seconds.
  ///   - whenNamed: Called when the Sentinels name the new primary.
  func failOver(_ kind: Failover, pause: Double, whenNamed: () -> Void) {
    let old = primary
    let (new, server) = (1 - old, servers[old])
    switch kind {
    case .ordered: sentinels[1].command("SENTINEL FAILOVER fleet")
    case .killed: server.kill()
    case .suspended: server.signal(SIGSTOP)
    // Machines reach all. But the primary, and the last Sentinel, which goes on to name it, are cut off from the rest.
    case .split: for network in [inside[old], toLast, fromLast] { network.cut(requests: true, replies: true) }
    }
    wait(seconds: 15) { primary == new }
    if primary == new { whenNamed() }
    usleep(UInt32(pause * 1e6))
    switch kind {
    case .ordered, .split: break
    case .killed: server.start()
    case .suspended: server.signal(SIGCONT)
    }
    usleep(UInt32(pause * 1e6))
    for network in [inside[old], toLast, fromLast] { network.restore() }
    guard primary == new else { return }
    // Sentinel does this too, after 8 seconds.
    server.command("REPLICAOF 127.0.0.1 \(ports[new])")
    wait(seconds: 15) { server.command("INFO replication")?.contains("master_link_status:up") == true }
  }
}
