import Foundation

let usage = """
  Usage: Bench [--quick] [--output FILE] [--scratch FOLDER] [SUITE...]

  Suites, all but scale, fleet, watched, sizes, profile, shared and large by default: \(Suite.allCases.map(\.rawValue).joined(separator: " "))
  --entries COUNT is the number of entries for scale, and --tool FILE the built urlcache for scale and watched.

  """

enum Suite: String, CaseIterable {
  case reads, sessions, writes, purge, evict, open, server, misses, memory, churn, scale, fleet, watched, sizes,
    profile, shared, large

  /// The suites that run if none is named.
  static let defaults = allCases.filter { ![.scale, .fleet, .watched, .sizes, .profile, .shared, .large].contains($0) }

  func run(_ report: Report, _ scratch: Scratch, _ scale: Scale.Options) async throws {
    switch self {
    case .reads:
      try await Values(report: report, scratch: scratch).run()
      try Reads(report: report, scratch: scratch).run()
    case .sessions: try await Sessions(report: report, scratch: scratch).run()
    case .writes: try Writes(report: report, scratch: scratch).run()
    case .purge: try Purges(report: report, scratch: scratch).run()
    case .evict: try Evictions(report: report, scratch: scratch).run()
    case .open: try Opening(report: report, scratch: scratch).run()
    case .server: try await Servers(report: report, scratch: scratch).run()
    case .misses: try await Misses(report: report, scratch: scratch).run()
    case .profile: try await Misses(report: report, scratch: scratch).profile()
    case .memory: try await Memory(report: report, scratch: scratch).run()
    case .churn: try Churn(report: report, scratch: scratch).run()
    case .fleet: try await Fleets(report: report, scratch: scratch).run()
    case .shared: try await Fleets(report: report, scratch: scratch).sharedHits()
    case .watched: try Watched(report: report, scratch: scratch, tool: scale.tool).run()
    case .sizes: try Sizes(report: report, scratch: scratch).run()
    case .large: try await Large(report: report, scratch: scratch).run()
    case .scale: try Scale(report: report, scratch: scratch, options: scale).run()
    }
  }
}

func run(_ words: [String]) async throws {
  var suites: [Suite] = []
  var output = "results.json"
  var folder = NSTemporaryDirectory()
  var isQuick = false
  var scale = Scale.Options()
  var rest = words[...]
  if words.first == ScaleWriter.command { return try ScaleWriter.run(Array(words.dropFirst())) }
  if words.first == FleetMachine.command { return try FleetMachine.work(Array(words.dropFirst())) }
  if words.first == LargeLoad.command { return try await LargeLoad.work(Array(words.dropFirst())) }
  while let word = rest.popFirst() {
    switch word {
    case "--quick": isQuick = true
    case "--output": output = rest.popFirst() ?? output
    case "--scratch": folder = rest.popFirst() ?? folder
    case "--entries": scale.count = rest.popFirst().flatMap(Int.init) ?? scale.count
    case "--tool": scale.tool = rest.popFirst()
    default:
      guard let suite = Suite(rawValue: word) else { throw BenchError("there is no suite \(word)") }
      suites.append(suite)
    }
  }
  let report = Report(isQuick: isQuick)
  let scratch = try Scratch(below: folder)
  for suite in suites.isEmpty ? Suite.defaults : suites {
    let rowCount = report.rows.count
    try await suite.run(report, scratch, scale)
    if report.rows.count == rowCount { throw BenchError("the suite \(suite.rawValue) measured nothing") }
    // Write after each suite, so that its results survive if a later suite fails.
    try report.write(to: output)
  }
}

do {
  try await run(Array(CommandLine.arguments.dropFirst()))
} catch {
  FileHandle.standardError.write(Data("Bench: \(error)\n\(usage)".utf8))
  exit(2)
}
