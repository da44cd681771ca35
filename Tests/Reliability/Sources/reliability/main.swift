import FoundationEssentials
import Glibc
import ResponseStore

// `reliability [--quick] [--seed N] [NAME...]` runs the series. They start child processes as `reliability child ...`.

let usage = """
  Usage: reliability [--quick] [--verbose] [--seed N] [--seconds N] [--only SCENARIO] [--mutations]
                     [--recorder FILE] [--machine FILE] [--tool FILE] [--results FILE]
                     [kill|powerloss|damage|processes|purge|input|tiers|users|contract|fleet|longrun]...

  Runs the named series, or all of them. Scripts/reliability builds this program and runs it.
  """

var arguments = Array(CommandLine.arguments.dropFirst())
if arguments.first == "child" { runChild(Array(arguments.dropFirst())) }

let scratch = (ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp") + "/reliability.\(getpid())"
var setting = RunConfiguration(seed: 20_261_121, scratch: scratch, resultsPath: "/dev/null")
var names: [String] = []
while let argument = arguments.first {
  arguments.removeFirst()
  switch argument {
  case "--quick": setting.isQuick = true
  case "--verbose": setting.isVerbose = true
  case "--seed":
    guard let seed = arguments.first.flatMap({ UInt64($0) }) else { fail(usage) }
    setting.seed = seed
    arguments.removeFirst()
  case "--seconds":
    guard let seconds = arguments.first.flatMap({ Double($0) }), seconds > 0 else { fail(usage) }
    setting.seconds = seconds
    arguments.removeFirst()
  case "--results":
    guard let path = arguments.first else { fail(usage) }
    setting.resultsPath = path
    arguments.removeFirst()
  case "--recorder":
    guard let path = arguments.first else { fail(usage) }
    setting.recorder = path
    arguments.removeFirst()
  case "--machine":
    guard let path = arguments.first else { fail(usage) }
    setting.machineLibrary = path
    arguments.removeFirst()
  case "--mutations": setting.breaksRules = true
  case "--tool":
    guard let path = arguments.first else { fail(usage) }
    setting.tool = path
    arguments.removeFirst()
  case "--only":
    guard let name = arguments.first else { fail(usage) }
    setting.only = name
    arguments.removeFirst()
  case "-h", "--help":
    print(usage)
    exit(0)
  case let name where series[name] != nil: names.append(name)
  default: fail("unknown argument \"\(argument)\"\n\(usage)")
  }
}
if let only = setting.only {
  let withScenarios = ["input", "tiers", "users", "contract", "fleet", "longrun"]
  guard !names.isEmpty, names.allSatisfy(withScenarios.contains) else {
    fail("name the series of the scenario \"\(only)\": one of \(withScenarios.joined(separator: ", "))")
  }
}
makeDirectory(scratch)
var failed: [String] = []
for name in names.isEmpty ? seriesNames : names {
  guard let run = series[name] else { continue }
  let resultCount = setting.resultCount.value
  let isGood = run(setting)
  if setting.resultCount.value == resultCount {
    say("\(name): nothing was tested\(setting.only.map { "; there is no scenario \"\($0)\"" } ?? "")")
    failed.append(name)
  } else if !isGood {
    failed.append(name)
  }
}
removeTree(scratch)
if !failed.isEmpty { fail("failed: \(failed.joined(separator: ", "))") }
