import Glibc
import StoreContract
import Synchronization

/// Injects the faults of a scenario until it is over, and undoes each.
final class FleetInjector: Sendable {
  private let scenario: FleetScenario
  private let hosts: [FleetHost]
  private let redis: FleetRedis
  private let sentinels: FleetSentinels?
  private let clocks: FleetClocks
  private let ledger: Ledger
  private let running = Atomic(0)
  private let injected = Atomic(0)
  private let failovers = Mutex((count: 0, longestReturn: 0.0))
  private let failoverNumber = Atomic(0)
  /// Whether a failover is measured, during which no fault of a machine begins.
  private let isMeasuring = Atomic(false)
  /// Whether machines may not be back after it.
  private let isWatching = Atomic(false)

  init(
    _ scenario: FleetScenario, _ hosts: [FleetHost], _ redis: FleetRedis, _ sentinels: FleetSentinels?,
    _ clocks: FleetClocks, _ ledger: Ledger
  ) {
    self.scenario = scenario
    self.hosts = hosts
    self.redis = redis
    self.sentinels = sentinels
    self.clocks = clocks
    self.ledger = ledger
  }

  /// The number of faults so far.
  var count: Int { injected.load(ordering: .relaxed) }

  /// The number of failovers, and the longest time, in seconds, after which all machines served and shared again.
  var returns: (count: Int, longest: Double) { failovers.withLock { ($0.count, $0.longestReturn) } }

  func start(seed: UInt64) {
    for thread in 0..<(scenario.maximumFaultCount ?? max(2, hosts.count / 2)) {
      spawn(seed &+ UInt64(thread)) { self.injectIntoMachine(&$0) }
    }
    if !scenario.redisFaults.isEmpty { spawn(seed &+ 1000) { self.injectIntoRedis(&$0) } }
  }

  private func spawn(_ seed: UInt64, _ body: @escaping @Sendable (inout SeededRandom) -> Void) {
    running.add(1, ordering: .relaxed)
    startThread { [self] in
      var random = SeededRandom(seed &* 7919)
      while !ledger.isOver { body(&random) }
      running.subtract(1, ordering: .releasing)
    }
  }

  /// Waits until all faults are undone.
  func waitUntilDone() {
    while running.load(ordering: .acquiring) > 0 { usleep(1000) }
  }

  /// Waits for a random time, or until the scenario is over.
  private func pause(from minimum: Double = 0, upTo seconds: Double, _ random: inout SeededRandom) {
    let end = now() + minimum + (seconds - minimum) * Double(random.below(1000)) / 1000
    while now() < end, !ledger.isOver { usleep(5000) }
  }

  // MARK: Machines

  private func injectIntoMachine(_ random: inout SeededRandom) {
    while isMeasuring.load(ordering: .acquiring), !ledger.isOver { usleep(5000) }
    let fault = scenario.machineFaults[random.below(scenario.machineFaults.count)]
    let host = hosts[random.below(hosts.count)]
    host.exclusively(fault) { inject(fault, into: host, &random) }
    pause(upTo: 1, &random)
  }

  private func inject(_ fault: FleetFault, into host: FleetHost, _ random: inout SeededRandom) {
    let duration = FleetMachine.lease * scenario.duration
    injected.add(1, ordering: .relaxed)
    switch fault {
    case .kill, .reboot:
      host.signal(SIGKILL)
      host.wait(expecting: .signaled(SIGKILL))
      ledger.processDied(host.number)
      if fault == .reboot { clocks.reboot(host.number) }
      pause(upTo: duration / 2, &random)
      host.start()
    case .leave:
      ledger.setLeaving(host.number, true)
      host.wait(expecting: .exited(0))
      ledger.setLeaving(host.number, false)
      pause(upTo: duration / 4, &random)
      host.start()
    case .stop:
      host.signal(SIGSTOP)
      pause(upTo: duration, &random)
      host.signal(SIGCONT)
    case .wallClock:
      let steps = [-3600.0, -7, -1, 1, 7, 3600]
      clocks.setWallOffset(steps[random.below(steps.count)], of: host.number)
      pause(upTo: duration, &random)
      clocks.setWallOffset(0, of: host.number)
    case .cut:
      host.proxy.cut(requests: true, replies: true)
      pause(upTo: duration, &random)
      host.proxy.restore()
    case .losesReplies:
      host.proxy.cut(requests: false, replies: true)
      pause(upTo: duration, &random)
      host.proxy.restore()
    case .slow:
      let delay = 1000 * (10 + random.below(1400))
      let direction = random.below(3)
      host.proxy.slow(requests: direction == 0 ? 0 : delay, replies: direction == 1 ? 0 : delay)
      pause(upTo: duration * 2, &random)
      host.proxy.restore()
    case .latePost:
      // What is sent meanwhile arrives within the time limit of a command, but later than what is sent after it. By
      // then the other machines have renewed their leases, and can no longer learn of it.
      host.proxy.slow(requests: 1_800_000, replies: 0)
      pause(from: 0.1, upTo: 0.5, &random)
      host.proxy.restore()
      pause(from: 0.2, upTo: 0.8, &random)
      let others = hosts.filter { $0 !== host }
      for other in others { other.proxy.cut(requests: true, replies: true) }
      pause(from: 0.8, upTo: 1.2, &random)
      for other in others { other.proxy.restore() }
    case .lateReply:
      // A renewal counts in Redis for most of a lease before the machine learns of it, which learns of nothing else.
      host.proxy.slow(requests: 0, replies: Int(FleetMachine.lease * 1e6))
      pause(from: 0.5, upTo: 1.5, &random)
      host.proxy.cut(requests: true, replies: false)
      pause(from: 1.4, upTo: 1.8, &random)
      host.proxy.restore()
    case .restart, .empty, .oldDump, .suspend, .flush, .flushWhileSlow, .deletedKey, .redisClock, .failover,
      .primaryKilled, .primarySuspended, .primarySplit:
      break
    }
  }

  // MARK: Redis

  private func injectIntoRedis(_ random: inout SeededRandom) {
    pause(upTo: scenario.redisPause, &random)
    guard !ledger.isOver else { return }
    injected.add(1, ordering: .relaxed)
    let pauseTime = UInt32(random.below(Int(FleetMachine.lease * 2e6)))
    // Long enough for purges on the new primary, beyond the leases of the earlier one.
    let failoverPause = FleetMachine.wait * Double(random.below(1500)) / 1000
    switch scenario.redisFaults[random.below(scenario.redisFaults.count)] {
    case .restart: redis.restart(with: .all, pause: pauseTime)
    case .empty: redis.restart(with: .none, pause: pauseTime)
    case .oldDump:
      redis.save(asOld: true)
      pause(upTo: scenario.redisPause, &random)
      redis.restart(with: .old, pause: pauseTime / 4)
    case .suspend:
      redis.signal(SIGSTOP)
      usleep(pauseTime)
      redis.signal(SIGCONT)
    case .flush: redis.command("FLUSHALL")
    case .flushWhileSlow:
      // A machine with a lease learns of purges late, when the log that had them is gone.
      let host = hosts[random.below(hosts.count)]
      host.exclusively(.slow) {
        host.proxy.slow(requests: 0, replies: Int(FleetMachine.lease * 6e5))
        usleep(UInt32(FleetMachine.lease * 5e5))
        redis.command("FLUSHALL")
        host.proxy.restore()
      }
    case .deletedKey:
      let keys = ["ctl", "log", "acks", "seen", "wait"]
      redis.command("DEL lmuc:{default}:\(keys[random.below(keys.count)])")
    case .failover: failOver(.ordered, pause: failoverPause)
    case .primaryKilled: failOver(.killed, pause: failoverPause)
    case .primarySuspended: failOver(.suspended, pause: failoverPause)
    case .primarySplit: failOver(.split, pause: failoverPause)
    case .redisClock:
      let steps = [-3600.0, -7, 7, 3600]
      clocks.setWallOffset(steps[random.below(steps.count)], of: hosts.count)
      pause(upTo: scenario.redisPause, &random)
      clocks.setWallOffset(0, of: hosts.count)
    case .kill, .reboot, .leave, .stop, .wallClock, .cut, .losesReplies, .slow, .latePost, .lateReply: break
    }
  }

  // MARK: Failovers

  /// Fails over. Every other time, measures how long it takes until all machines are back.
  private func failOver(_ kind: FleetSentinels.Failover, pause: Double) {
    guard failoverNumber.add(1, ordering: .relaxed).newValue % 2 == 1 else {
      sentinels?.failOver(kind, pause: pause) {}
      return
    }
    isMeasuring.store(true, ordering: .releasing)
    sentinels?.failOver(kind, pause: pause, whenNamed: watchReturn)
    while isWatching.load(ordering: .acquiring) { usleep(5000) }
    isMeasuring.store(false, ordering: .releasing)
  }

  /// The time, in seconds after Sentinels name a new primary, within which all machines must be back.
  static let maximumReturnTime = 10.0

  /// Measures how long it takes until all machines serve and share again, now that there is a new primary.
  private func watchReturn() {
    isWatching.store(true, ordering: .relaxed)
    let start = now()
    startThread { [self] in
      // By then the leases of the earlier primary have ended.
      usleep(UInt32(FleetMachine.wait * 1e6))
      let before = hosts.map { (served: ledger.servedCount($0.number), shared: ledger.sharedCount($0.number)) }
      func areBack() -> Bool {
        zip(hosts, before).allSatisfy { host, before in
          ledger.servedCount(host.number) > before.served && ledger.sharedCount(host.number) > before.shared
        }
      }
      while !ledger.isOver, now() < start + 30, !areBack() { usleep(10_000) }
      let taken = now() - start
      // At the end of the scenario machines stop.
      if areBack() || taken > Self.maximumReturnTime {
        failovers.withLock { $0 = ($0.count + 1, max($0.longestReturn, taken)) }
      }
      if taken > Self.maximumReturnTime {
        for (host, before) in zip(hosts, before) {
          say(
            "fleet: machine \(host.number) \(Int(taken)) s after a failover: "
              + "\(ledger.servedCount(host.number) - before.served) served, "
              + "\(ledger.sharedCount(host.number) - before.shared) shared")
        }
      }
      isWatching.store(false, ordering: .releasing)
    }
  }
}
