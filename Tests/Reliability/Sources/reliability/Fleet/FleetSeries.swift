import Glibc
import LoopbackOrigin
import StoreContract

/// Runs a fleet of machines, which are processes with directories of their own, on a Redis server while faults happen.
///
/// Every response is compared with the purges that had returned before its request began.
struct FleetSeries {
  private(set) var setting: RunConfiguration
  let directory: String

  /// The results of a scenario.
  private struct Outcome {
    var isGood: Bool
    var violationCount: UInt64
    var seconds: Double
    var text: String
  }

  func run(seconds: Double) -> Bool {
    if setting.breaksRules { return runMutations(seconds: seconds) }
    var isGood = true
    for scenario in FleetScenario.all where setting.only == nil || setting.only == scenario.name {
      let outcome = run(scenario, seconds: seconds)
      setting.report("fleet: \(scenario.name)", outcome.text)
      isGood = isGood && outcome.isGood
    }
    return isGood
  }

  /// How often a scenario runs with a broken rule, each time with another seed, until there is a purged response.
  private static let maximumRunCount: UInt64 = 8

  /// Breaks each rule of the protocol in turn, and expects a purged response.
  private func runMutations(seconds: Double) -> Bool {
    var isGood = true
    for rule in FleetRule.allCases where setting.only == nil || setting.only == rule.rawValue {
      let name = rule.scenarioName
      guard let scenario = FleetScenario.all.first(where: { $0.name == name }) else { fail("no scenario \(name)") }
      var series = self
      var outcome = series.run(scenario, seconds: seconds, breaking: rule)
      var time = outcome.seconds
      while outcome.violationCount == 0, series.setting.seed < setting.seed + Self.maximumRunCount - 1 {
        series.setting.seed += 1
        outcome = series.run(scenario, seconds: seconds, breaking: rule)
        time += outcome.seconds
      }
      let isFound = outcome.violationCount > 0
      isGood = isGood && isFound
      setting.report(
        "rules: without \(rule.rawValue)",
        "scenario \(name), seed \(series.setting.seed): "
          + (isFound
            ? "purged response found after \(time.formatted(1)) s: OK"
            : "NOT FOUND in \(time.formatted(1)) s; \(outcome.text)"))
    }
    return isGood
  }

  private func run(_ scenario: FleetScenario, seconds: Double, breaking rule: FleetRule? = nil) -> Outcome {
    makeDirectory(directory)
    defer { removeTree(directory) }
    let machineCount = setting.isQuick ? 4 : 8
    let ledgerPath = directory + "/ledger"
    let ledger = Ledger.fleet(path: ledgerPath, machineCount: machineCount)
    let clocks = FleetClocks(path: directory + "/clocks", count: machineCount + 1)
    let replies = FleetOrigin(ledger)
    let origin: LoopbackOrigin
    do {
      origin = try LoopbackOrigin(recordsRequests: false) { replies.reply(to: $0) }
    } catch {
      fail("no origin: \(error)")
    }
    defer { origin.stop() }
    let variables = clocks.environment(of: machineCount, library: setting.machineLibrary)
    let certificates =
      scenario.usesTLS || scenario.hasSentinels ? FleetCertificates(directory: directory + "/certificates") : nil
    let sentinels =
      scenario.hasSentinels
      ? certificates.map { certificates in
        FleetSentinels(directory: directory + "/redis", certificates: certificates) { ports in
          variables.merging(["MACHINE_PORTS": ports]) { $1 }
        }
      } : nil
    defer { sentinels?.kill() }
    let tlsPort = certificates == nil || sentinels != nil ? nil : FleetEndpoint.freePort()
    let redis =
      sentinels?.servers[0]
      ?? FleetRedis(
        directory: directory + "/redis", environment: variables,
        options: tlsPort.flatMap { certificates?.options(port: $0) } ?? [])
    defer { redis.kill() }
    let (seed, port, folder) = (setting.seed, origin.port, directory)
    let hosts = (0..<machineCount).map { number in
      if scenario.hasDrift { clocks.setBootRate(number % 2 == 0 ? 915 : 1085, of: number) }
      let socket = "\(folder)/n\(number)"
      let (proxy, url): (FleetProxy, String) =
        if let sentinels {
          (
            FleetProxy(sentinels.endpoints.map { (nil, $0) }),
            sentinels.url(believingOne: rule == .primaryByMajority ? number : nil)
          )
        } else if let tlsPort {
          (FleetProxy([(nil, .tcp(tlsPort))]), "rediss://127.0.0.1:\(tlsPort)")
        } else {
          (FleetProxy([(.unix(socket), .unix(redis.socketPath))], RedisDouble(breaking: rule)), "unix://" + socket)
        }
      return FleetHost(
        number: number, directory: folder, proxy: proxy,
        environment: clocks.environment(of: number, library: setting.machineLibrary),
        arguments: [
          "fleet", "\(number)", "\(seed)", "\(port)", ledgerPath, "\(folder)/store.\(number)", url,
          certificates?.directory ?? "", "\(scenario.logCount)", "\(machineCount)", rule?.rawValue ?? "",
        ])
    }
    let injector = FleetInjector(scenario, hosts, redis, sentinels, clocks, ledger)
    let start = now()
    // First some requests and purges without faults.
    while now() < start + 10, ledger[.purges] < 2 { usleep(10_000) }
    injector.start(seed: setting.seed)
    let end = now() + seconds
    while now() < end, rule == nil || ledger[.violations] == 0 { usleep(10_000) }
    let taken = now() - start
    ledger.end()
    injector.waitUntilDone()
    for host in hosts { host.wait(expecting: .exited(0)) }
    return outcome(scenario, ledger, hosts, injector, requests: origin.requestCount, seconds: taken)
  }

  private func outcome(
    _ scenario: FleetScenario, _ ledger: Ledger, _ hosts: [FleetHost], _ injector: FleetInjector, requests: Int,
    seconds: Double
  ) -> Outcome {
    let violations = hosts.flatMap { $0.lines(withPrefix: "violation ") }
    for line in violations.prefix(5) { say("fleet: seed \(setting.seed), scenario \(scenario.name): \(line)") }
    let ends = hosts.flatMap(\.unexpectedEnds)
    for line in ends { say("fleet: \(line)") }
    for line in hosts.flatMap({ $0.lines(withPrefix: "a ") }).prefix(10) { say("fleet: \(line)") }
    if setting.isVerbose {
      for host in hosts { for line in host.lines(withPrefix: "log") { say("machine \(host.number): \(line)") } }
    }
    // A run in which nothing is stored or purged shows nothing.
    let hasWorked = ledger[.hits] > 0 && ledger[.purges] > 0 && injector.count > 0
    let returns = injector.returns
    let areBack = returns.longest <= FleetInjector.maximumReturnTime
    let isGood = ledger[.violations] == 0 && ends.isEmpty && ledger[.failures] == 0 && hasWorked && areBack
    let text =
      "\(hosts.count) machines, \(Int(seconds)) s (seed \(setting.seed)), \(injector.count) faults: \(ledger[.requests]) requests, "
      + "\(ledger[.hits]) without a new response of the origin, \(requests) at the origin; \(ledger[.purges]) purges "
      + "(\(ledger[.purgesByWait]) waited for leases to end, at most \(ledger[.longestPurge]) ms), \(ledger[.unconfirmed]) "
      + "unconfirmed, \(ledger[.unposted]) not posted; "
      + (scenario.hasSentinels
        ? "all machines served and shared again at most \(returns.longest.formatted(1)) s after \(returns.count) failovers that were measured; "
        : "")
      + "\(ledger[.violations]) purged responses: "
      + (isGood ? "OK" : "FAILED, \(ledger[.failures]) errors, \(ends.count) processes ended")
    return Outcome(isGood: isGood, violationCount: ledger[.violations], seconds: seconds, text: text)
  }
}

extension Double {
  /// The number with some digits behind the point.
  fileprivate func formatted(_ digits: Int) -> String {
    let scale = (0..<digits).reduce(1.0) { result, _ in result * 10 }
    return "\((self * scale).rounded() / scale)"
  }
}
