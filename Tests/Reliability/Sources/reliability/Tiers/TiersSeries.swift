import Foundation
import Glibc
import LoopbackOrigin
import StoreContract

/// Runs several processes with several caches each on one directory.
///
/// They look up, store, fetch and purge in all ways, and compare the results with the operations of all processes. In
/// one scenario they are also killed.
struct TiersSeries {
  let setting: RunConfiguration
  let directory: String

  func run(seconds: Double) -> Bool {
    var isGood = true
    for scenario in TierScenario.all where setting.only == nil || setting.only == scenario.name {
      makeDirectory(directory)
      isGood = run(scenario, seconds: seconds) && isGood
    }
    removeTree(directory)
    return isGood
  }

  private func run(_ scenario: TierScenario, seconds: Double) -> Bool {
    let ledgerPath = directory + "/ledger"
    let ledger = scenario.ledger(path: ledgerPath)
    let origin: LoopbackOrigin
    do {
      origin = try LoopbackOrigin(recordsRequests: false) { request in
        TierOrigin.reply(to: request, scenario, ledger)
      }
    } catch {
      fail("no origin: \(error)")
    }
    defer { origin.stop() }
    let content = TierContent(
      storedKeyCount: scenario.storedKeyCount, fetchedKeyCount: scenario.fetchedKeyCount, sizes: scenario.sizes,
      port: Int(origin.port))
    var random = SeededRandom(setting.seed)
    let storePath = directory + "/store"
    let deadline = now() + seconds
    func start(_ number: Int) -> Child {
      Child.start(
        [
          "tiers", scenario.name, storePath, ledgerPath, "\(number)", "\(Int((deadline - now()) * 1000))",
          "\(random.below(1 << 30))", "\(origin.port)",
        ], outputPath: directory + "/process.\(number)", environment: environment(scenario, &random))
    }
    var children = (0..<scenario.processCount).map(start)
    let toolCount = scenario.usesTool ? purgeByTool(scenario, content, ledger, seconds: seconds) : 0
    var killed: [(Child.End, output: String)] = []
    while scenario.killPause > 0, now() < deadline - 1 {
      usleep(UInt32(random.below(scenario.killPause * 1000)))
      let victim = random.below(scenario.processCount)
      children[victim].kill(SIGKILL)
      killed.append((children[victim].wait(), children[victim].output))
      ledger.processDied(victim)
      children[victim] = start(victim)
    }
    let ends = children.map { $0.wait(seconds: seconds + 150) }
    return report(scenario, children, ends, toolCount: toolCount, killed, seconds: seconds)
  }

  private func environment(_ scenario: TierScenario, _ random: inout SeededRandom) -> [String: String] {
    var environment = ["TSAN_OPTIONS": "die_after_fork=0 exitcode=0"]
    switch scenario.disk {
    case .healthy: break
    case .slow(let milliseconds): environment["RECORDER_SLOW"] = "\(milliseconds * 1000)"
    case .failing:
      environment["RECORDER_FAIL"] = "\(20 + random.below(400))"
      environment["RECORDER_FAIL_COUNT"] = "1"
    }
    if scenario.disk != .healthy { environment["LD_PRELOAD"] = setting.recorder }
    return environment
  }

  // MARK: The tool

  /// Runs `urlcache purge` repeatedly until the time has passed and returns the number of purges.
  private func purgeByTool(
    _ scenario: TierScenario, _ content: TierContent, _ ledger: Ledger, seconds: Double
  ) -> Int {
    var random = SeededRandom(setting.seed &+ 99)
    let storePath = directory + "/store"
    let end = now() + seconds
    var count = 0
    for _ in 0..<2000 where access(storePath + "/data-1/data.mdb", F_OK) != 0 { usleep(1000) }
    usleep(200_000)
    while now() < end {
      usleep(UInt32(random.below(100_000)))
      let purge = TierPurge.random(&random, content, tick: ledger.position)
      let isSoft = random.below(3) == 0
      guard let arguments = purge.toolArguments(directory: storePath, isSoft: isSoft, content) else { continue }
      purge.run(isSoft: isSoft, of: content, by: scenario.processCount, ledger) {
        let child = Child.start(arguments, executable: setting.tool, outputPath: directory + "/tool")
        let end = child.wait()
        if end != .exited(0) { say("tiers: \(scenario.name): urlcache \(end): \(child.output)") }
        return end == .exited(0)
      }
      count += 1
    }
    return count
  }

  // MARK: Results

  private func report(
    _ scenario: TierScenario, _ children: [Child], _ ends: [Child.End], toolCount: Int,
    _ killed: [(Child.End, output: String)], seconds: Double
  ) -> Bool {
    var isGood = true
    for (end, output) in killed where end != .signaled(SIGKILL) || output.contains("violation ") {
      isGood = false
      say("tiers: \(scenario.name): a process that was to be killed \(end): \(output.prefix(20_000))")
    }
    var sums = [Int](repeating: 0, count: 5)
    var longest = [Int](repeating: 0, count: 3)
    var violations = [Int](repeating: 0, count: Ledger.Violation.Kind.allCases.count)
    for (number, (child, end)) in zip(children, ends).enumerated() {
      let output = child.output
      let lines = output.split(separator: "\n")
      for line in lines where line.hasPrefix("violation ") {
        say("tiers: seed \(setting.seed), scenario \(scenario.name): \(line)")
      }
      func add(_ name: String, to totals: inout [Int], _ combine: (Int, Int) -> Int) {
        guard let line = lines.last(where: { $0.hasPrefix(name + " ") }) else { return }
        let numbers = line.split(separator: " ").dropFirst().compactMap { Int($0) }
        totals = zip(totals, numbers).map(combine)
      }
      add("numbers", to: &sums, +)
      add("longest", to: &longest, max)
      add("violations", to: &violations, +)
      let hasRaces = output.contains("WARNING: ThreadSanitizer")
      isGood = isGood && end == .exited(0) && !hasRaces
      if hasRaces || end != .exited(0) && end != .exited(1) || setting.isVerbose {
        say("tiers: \(scenario.name): process \(number) \(end): \(output.prefix(20_000))")
      }
    }
    let (end, output) = Child.run(
      ["tiers-check", directory + "/store", "\(scenario.diskCapacity)"], outputPath: directory + "/check")
    if end != .exited(0) {
      isGood = false
      say("tiers: \(scenario.name): the store afterwards: \(output)")
    }
    // A scenario without lookups, or without responses to find, shows nothing.
    isGood = isGood && sums[0] > 0 && sums[2] + sums[3] > 0
    let found = zip(Ledger.Violation.Kind.allCases, violations).filter { $0.1 > 0 }
    setting.report(
      "tiers: \(scenario.name)",
      "\(scenario.processCount) processes × \(scenario.memoryCapacities.count) caches, \(Int(seconds)) s "
        + "(seed \(setting.seed)): \(sums[0]) lookups, \(sums[1]) hits, \(sums[2]) writes, \(sums[3]) loads, "
        + "\(sums[4]) purges and \(toolCount) by the tool, \(killed.count) kills; "
        + "maximum latency of a lookup \(longest[0]) ms, "
        + "a write \(longest[1]) ms, a purge \(longest[2]) ms: "
        + (isGood ? "OK" : "FAILED, " + found.map { "\($0.1) times: \($0.0.rawValue)" }.joined(separator: ", ")))
    return isGood
  }
}

/// The replies of the origin of the series.
enum TierOrigin {
  static func reply(to request: RecordedRequest, _ scenario: TierScenario, _ ledger: Ledger) -> Reply {
    guard let key = TierContent.key(ofTarget: request.target), let asked = request["X-Began"]?.split(separator: " "),
      asked.count == 2, let began = UInt64(asked[0]), let process = Int(asked[1])
    else { return Reply(404) }
    if let tag = request["If-None-Match"], let validated = UInt64(tag.filter(\.isNumber)) {
      // Every version stays valid until a newer one is fetched.
      let position = ledger.takePosition()
      ledger.noteValidation(of: validated, at: position)
      var random = SeededRandom(position)
      usleep(UInt32(random.below(scenario.originDelay * 1000 + 1)))
      return Reply(304, [("ETag", tag), ("Cache-Control", "max-age=31536000")])
    }
    let version = ledger.beginWrite(to: key, by: process, basis: .version, began: began)
    let identity = TierContent.Identity(
      key: key, version: version, process: process, began: began, time: UInt64(now() * 1e6))
    let content = TierContent(
      storedKeyCount: scenario.storedKeyCount, fetchedKeyCount: scenario.fetchedKeyCount, sizes: scenario.sizes,
      port: 0)
    var random = SeededRandom(version)
    usleep(UInt32(random.below(scenario.originDelay * 1000 + 1)))
    let fields = content.fields(identity).map { ($0.key, $0.value) } + [("ETag", "\"\(version)\"")]
    let body = content.body(identity)
    return scenario.streams ? paused(fields, body, &random) : Reply(200, fields, body: body)
  }

  /// Returns a reply that is sent in four parts with pauses, and cut in one of eight cases.
  private static func paused(_ fields: [(String, String)], _ body: Data, _ random: inout SeededRandom) -> Reply {
    var parts: [Reply.Part] = []
    let partByteCount = body.count / 4 + 1
    var delay = 0
    for start in stride(from: 0, to: body.count, by: partByteCount) {
      let gate = Gate()
      delay += random.below(40)
      DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(delay)) { gate.open() }
      parts += [.hold(gate), .bytes(body.subdata(in: start..<min(start + partByteCount, body.count)))]
    }
    let reply = Reply(200, fields, parts: parts)
    return random.below(8) == 0 ? reply.cut(.inBody(after: random.below(body.count))) : reply
  }
}

extension TierScenario {
  /// Maps the ledger, in which the tool counts as one more process.
  func ledger(path: String) -> Ledger {
    let ledger = Ledger(
      path: path, .init(slotCount: storedKeyCount + fetchedKeyCount, processCount: processCount + 1))
    // Responses are also missing because they are stale, or only in memory.
    ledger.isEvicting = true
    return ledger
  }
}
