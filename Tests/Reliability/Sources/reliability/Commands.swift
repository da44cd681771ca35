import Glibc
import ResponseStore

/// The names of the series, in the order in which they run.
let seriesNames = [
  "kill", "powerloss", "damage", "processes", "purge", "input", "tiers", "users", "contract", "fleet",
  "longrun",
]

let series: [String: @Sendable (RunConfiguration) -> Bool] = [
  "kill": { setting in
    let isGood = KillSeries(setting: setting, directory: setting.scratch + "/kill").run(
      killCount: setting.isQuick ? 40 : 500)
    return KillOneOfSeveral(setting: setting, directory: setting.scratch + "/kill").run(
      killCount: setting.isQuick ? 40 : 1000) && isGood
  },
  "powerloss": { setting in
    PowerLossSeries(setting: setting, directory: setting.scratch + "/powerloss").run(
      imageCount: setting.isQuick ? 100 : 1000)
  },
  "damage": { setting in DamageSeries(setting: setting, directory: setting.scratch + "/damage").run() },
  "purge": { setting in
    reportScene(
      "purge", setting, "purge-bench", setting.isQuick ? ["10000", "4"] : ["1000000", "60"])
  },
  "input": { setting in
    let isQuick = setting.isQuick
    let scenes: [(name: String, run: () -> Bool)] = [
      ("sizes", { reportScene("input: sizes", setting, "sizes", [isQuick ? "20000000" : "100000000"]) }),
      ("variants", { reportScene("input: variants", setting, "variants", [isQuick ? "2000" : "10000"]) }),
      ("clocks", { reportScene("input: clocks", setting, "clocks", []) }),
      (
        "urlcache",
        {
          ToolScene(setting: setting, directory: setting.scratch + "/tool").run(
            entryCount: isQuick ? 20_000 : 1_000_000)
        }
      ),
      ("one-host", { reportScene("input: one host", setting, "one-host", [isQuick ? "40000" : "1000000"]) }),
      ("hot-key", { reportScene("input: hot key", setting, "hot-key", [isQuick ? "4000" : "80000"]) }),
    ]
    let chosen = scenes.filter { setting.only == nil || setting.only == $0.name }
    if chosen.isEmpty { fail("the series input has no scenario \"\(setting.only ?? "")\"") }
    return chosen.map { $0.run() }.allSatisfy { $0 }
  },
  "processes": { setting in
    ProcessesSeries(setting: setting, directory: setting.scratch + "/processes").run(
      seconds: setting.seconds ?? (setting.isQuick ? 8 : 60))
  },
  "tiers": { setting in
    TiersSeries(setting: setting, directory: setting.scratch + "/tiers").run(
      seconds: setting.seconds ?? (setting.isQuick ? 4 : 60))
  },
  "users": { setting in
    var isGood = UsersSeries(setting: setting, directory: setting.scratch + "/users").run(
      seconds: setting.seconds ?? (setting.isQuick ? 4 : 60))
    for (name, memory) in [("one URL", 0), ("one URL in memory", 32 << 20)]
    where setting.only == nil || setting.only == name {
      let count = setting.isQuick ? 2000 : 100_000
      isGood = reportScene("users: \(name)", setting, "users-of-one-url", ["\(count)", "\(memory)"]) && isGood
    }
    return isGood
  },
  "contract": { setting in
    ContractSeries(setting: setting, directory: setting.scratch + "/contract").run(
      seconds: setting.seconds ?? (setting.isQuick ? 4 : 60))
  },
  "fleet": { setting in
    FleetSeries(setting: setting, directory: setting.scratch + "/fleet").run(
      seconds: setting.seconds ?? (setting.breaksRules ? 40 : setting.isQuick ? 6 : 60))
  },
  "longrun": { setting in
    LongRunSeries(setting: setting, directory: setting.scratch + "/longrun").run(
      seconds: setting.seconds ?? (setting.isQuick ? 20 : 600))
  },
]

/// Runs a child process and reports the last line of its output.
@discardableResult
private func reportScene(_ name: String, _ setting: RunConfiguration, _ command: String, _ arguments: [String]) -> Bool
{
  let directory = setting.scratch + "/scene"
  makeDirectory(directory)
  let child = Child.start([command, directory + "/store"] + arguments, outputPath: directory + "/log")
  let end = child.wait(seconds: 600)
  let output = child.output
  let isGood = end == .exited(0)
  let line = output.split(separator: "\n").last.map(String.init) ?? ""
  setting.report(name, isGood ? line + ": OK" : "FAILED, \(end): \(output.suffix(500))")
  removeTree(directory)
  return isGood
}

private func runScene(_ body: () throws(StoreError) -> Void) -> Never {
  do throws(StoreError) { try body() } catch { fail("\(error)") }
  exit(0)
}

/// Runs the command of a child process; the first argument is its name.
func runChild(_ arguments: [String]) -> Never {
  var rest = arguments[...]
  func next() -> String {
    guard let argument = rest.popFirst() else { fail("a child process lacks an argument: \(arguments)") }
    return argument
  }
  func number() -> Int {
    let text = next()
    guard let number = Int(text) else { fail("a child process expects a number instead of \(text)") }
    return number
  }
  switch next() {
  case "work":
    do {
      let worker = try Worker(
        directory: next(), ledgerPath: next(), keyCount: number(), capacity: number(), seed: UInt64(number()))
      worker.run(operationCount: rest.isEmpty ? .max : number())
      worker.store.close()
      exit(0)
    } catch {
      fail("\(error)")
    }
  case "store-and-flush":
    do throws(StoreError) {
      try KillOneOfSeveral.storeAndFlush(next(), countsPath: next(), number: number())
    } catch {
      fail("\(error)")
    }
  case "burn": KillOneOfSeveral.burn()
  case "check":
    let directory = next()
    let ledgerPath = next()
    var options = Checker.Options(keyCount: number(), capacity: number())
    options.settles = rest.contains("settle")
    options.holdsPromises = !rest.contains("damaged")
    Checker.run(directory: directory, ledgerPath: ledgerPath, options: options)
  case "crowd":
    ConcurrentWorker.work(
      directory: next(), ledgerPath: next(), capacity: number(), number: number(),
      seconds: Double(number()) / 1000,
      count: number())
  case "crowd-check":
    let directory = next()
    let ledgerPath = next()
    var options = Checker.Options(keyCount: ConcurrentWorker.keyCount, capacity: number())
    options.hostCount = ConcurrentWorker.processCount
    Checker.run(directory: directory, ledgerPath: ledgerPath, options: options)
  case "count": runScene { () throws(StoreError) in try Scenarios.count(next(), capacity: number()) }
  case "next-to-suspended":
    runScene { () throws(StoreError) in
      try Scenarios.nextToSuspended(next(), ledgerPath: next(), capacity: number())
    }
  case "capacity-next-to-suspended":
    runScene { () throws(StoreError) in
      try Scenarios.capacityNextToSuspended(next(), capacity: number(), newCapacity: number())
    }
  case "capacity": runScene { () throws(StoreError) in try Scenarios.capacity(next()) }
  case "open-second": runScene { () throws(StoreError) in try Scenarios.openSecond(next(), capacity: number()) }
  case "fill":
    runScene { () throws(StoreError) in
      try Scenarios.fill(next(), ledgerPath: next(), keyCount: number(), capacity: number())
    }
  case "failing-disk":
    runScene { () throws(StoreError) in
      Scenarios.failingDisk(next(), ledgerPath: next(), keyCount: number(), capacity: number())
    }
  case "full-disk": runScene { () throws(StoreError) in try Scenarios.fullDisk(next()) }
  case "vanish": runScene { () throws(StoreError) in try Scenarios.vanish(next()) }
  case "purge-bench":
    runScene { () throws(StoreError) in try PurgeBench.run(next(), entryCount: number(), roundCount: number()) }
  case "fill-entries": runScene { () throws(StoreError) in try ToolScene.fill(next(), count: number()) }
  case "sizes": runScene { () throws(StoreError) in try BadInput.sizes(next(), largest: number()) }
  case "variants": runScene { () throws(StoreError) in try BadInput.variants(next(), count: number()) }
  case "clocks": runScene { () throws(StoreError) in try BadInput.clocks(next()) }
  case "hot-key": runScene { () throws(StoreError) in try BadInput.hotKey(next(), count: number()) }
  case "one-host": runScene { () throws(StoreError) in try BadInput.oneHost(next(), count: number()) }
  case "tiers":
    let name = next()
    guard let scenario = TierScenario.all.first(where: { $0.name == name }) else { fail("no scenario \(name)") }
    do {
      let process = try TierProcess(
        scenario, directory: next(), ledgerPath: next(), number: number(), seconds: Double(number()) / 1000,
        seed: UInt64(number()), port: number())
      process.run()
    } catch {
      fail("\(error)")
    }
  case "users":
    let name = next()
    guard let scenario = UserScenario.all.first(where: { $0.name == name }) else { fail("no scenario \(name)") }
    do {
      try UsersSeries.work(
        scenario, directory: next(), seconds: Double(number()) / 1000, seed: UInt64(number()), port: number(),
        ledgerPath: next())
    } catch {
      fail("\(error)")
    }
  case "users-of-one-url":
    let (directory, count, memory) = (next(), number(), number())
    Task.detached {
      do { try await UsersOfOneURL.run(directory, count: count, memory: memory) } catch { fail("\(error)") }
      exit(0)
    }
    while true { pause() }
  case "longrun":
    let name = next()
    guard let scenario = LongRunScenario.all.first(where: { $0.name == name }) else { fail("no scenario \(name)") }
    do {
      try LongRunSeries.work(
        scenario, directory: next(), seconds: Double(number()) / 1000, seed: UInt64(number()), port: number())
    } catch {
      fail("\(error)")
    }
  case "fleet":
    do {
      let (machine, seed, port, ledgerPath) = (number(), UInt64(number()), number(), next())
      let (directory, url, certificates, logCount) = (next(), next(), next(), number())
      try FleetMachine(number: machine, seed: seed, port: port, ledgerPath: ledgerPath, machineCount: number())
        .run(
          directory: directory, url: url,
          certificates: certificates.isEmpty ? nil : FleetCertificates(in: certificates), logCount: logCount,
          breaking: FleetRule(rawValue: next()))
      exit(0)
    } catch {
      fail("\(error)")
    }
  case "tiers-check": runScene { () throws(StoreError) in try Scenarios.invariants(next(), capacity: number()) }
  case "contract":
    ContractSeries.work(next(), scenario: next(), seconds: Double(number()) / 1000, seed: UInt64(number()))
  case "fork": runScene { () throws(StoreError) in try Scenarios.fork(next(), capacity: number()) }
  case "other-format": runScene { () throws(StoreError) in try Scenarios.otherFormat(next(), capacity: number()) }
  case let name:
    fail("there is no child command \"\(name)\"")
  }
}
