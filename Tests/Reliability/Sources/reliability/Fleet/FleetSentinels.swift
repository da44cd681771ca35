import Glibc

/// Two Redis servers, of which one replicates the other, and three Sentinels, over TLS.
final class FleetSentinels: Sendable {
  let servers: [FleetRedis]
  let ports: [UInt16]
  private let sentinels: [FleetRedis]
  private let sentinelPorts: [UInt16]
  /// The networks of the Sentinels and of the other server to each server, but not those of machines.
  private let inside: [FleetProxy]

  /// - Parameter environment: Returns the variables of a server for the ports of its network.
  init(directory: String, certificates: FleetCertificates, environment: (String) -> [String: String]) {
    makeDirectory(directory)
    let ports = [FleetEndpoint.freePort(), FleetEndpoint.freePort()]
    let inside = ports.map { FleetProxy([(nil, .tcp($0))]) }
    let environment = environment(inside.map(\.ports).joined(separator: ","))
    servers = ports.enumerated().map { index, port in
      FleetRedis(
        directory: "\(directory)/\(index)", environment: environment,
        options: certificates.options(port: port) + ["--repl-diskless-sync-delay", "0"]
          + (index == 0 ? [] : ["--replicaof", "127.0.0.1", "\(ports[0])"]))
    }
    sentinelPorts = (0..<3).map { _ in FleetEndpoint.freePort() }
    sentinels = sentinelPorts.enumerated().map { index, port in
      FleetRedis(
        directory: "\(directory)/s\(index)", environment: environment, options: certificates.options(port: port),
        sentinel: """
          sentinel monitor fleet 127.0.0.1 \(ports[0]) 2
          sentinel down-after-milliseconds fleet 500
          sentinel failover-timeout fleet 3000
          """)
    }
    (self.ports, self.inside) = (ports, inside)
    for sentinel in sentinels {
      wait(seconds: 30) { sentinel.command("INFO sentinel")?.contains("slaves=1,sentinels=3") == true }
    }
  }

  /// All servers that a machine connects to.
  var endpoints: [FleetEndpoint] { (ports + sentinelPorts).map { .tcp($0) } }

  var url: String {
    "rediss+sentinel://" + sentinelPorts.map { "127.0.0.1:\($0)" }.joined(separator: ",") + "/fleet"
  }

  func kill() {
    for server in sentinels + servers { server.kill() }
  }

  private func wait(seconds: Double, until condition: () -> Bool) {
    let end = now() + seconds
    while now() < end, !condition() { usleep(20_000) }
  }

  /// The server that a Sentinel names.
  private var primary: Int {
    let reply = sentinels[0].command("SENTINEL GET-MASTER-ADDR-BY-NAME fleet") ?? ""
    return reply.contains("\(ports[1])\r\n") ? 1 : 0
  }

  enum Failover: Sendable { case ordered, killed, suspended, split }

  /// Makes the replica the primary. The earlier primary goes on as one for a while, and then becomes its replica.
  ///
  /// - Parameter pause: How long that takes, in seconds.
  func failOver(_ kind: Failover, pause: Double) {
    let old = primary
    let (new, server) = (1 - old, servers[old])
    switch kind {
    case .ordered: sentinels[1].command("SENTINEL FAILOVER fleet")
    case .killed: server.kill()
    case .suspended: server.signal(SIGSTOP)
    // Machines reach both servers; but the Sentinels, and the other server, not the primary.
    case .split: inside[old].cut(requests: true, replies: true)
    }
    wait(seconds: 15) {
      sentinels[0].command("SENTINEL GET-MASTER-ADDR-BY-NAME fleet")?.contains("\(ports[new])") == true
    }
    usleep(UInt32(pause * 1e6))
    switch kind {
    case .ordered, .split: break
    case .killed: server.start()
    case .suspended: server.signal(SIGCONT)
    }
    usleep(UInt32(pause * 1e6))
    inside[old].restore()
    guard primary == new else { return }
    // Sentinel does this too, after 8 seconds.
    server.command("REPLICAOF 127.0.0.1 \(ports[new])")
    wait(seconds: 15) { server.command("INFO replication")?.contains("master_link_status:up") == true }
  }
}
