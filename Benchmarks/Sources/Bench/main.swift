import Foundation

let usage = """
  Usage: Bench [--quick] [--commit TEXT] [--output FILE] [--scratch FOLDER] [SUITE...]

  Suites, all but profile and shared by default: \(Suite.allCases.map(\.rawValue).joined(separator: " "))
  --entries COUNT is the number of entries for scale, 100,000 and 1,000,000 by default, and --tool FILE the built urlcache for scale and watched.

  """

enum Suite: String, CaseIterable {
  case reads, sessions, writes, purge, open, server, misses, scale, large, fleet, evict, memory, churn, watched, sizes,
    profile, shared

  /// The suites that run if none is named. The others measure parts of these.
  static let defaults = allCases.filter { ![.profile, .shared].contains($0) }

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
  var commit = "unknown"
  var isQuick = false
  var scale = Scale.Options()
  var rest = words[...]
  if words.first == ScaleWriter.command { return try ScaleWriter.run(Array(words.dropFirst())) }
  if words.first == FleetMachine.command { return try FleetMachine.work(Array(words.dropFirst())) }
  if words.first == LargeLoad.command { return try await LargeLoad.work(Array(words.dropFirst())) }
  while let word = rest.popFirst() {
    switch word {
    case "--quick": isQuick = true
    case "--commit": commit = rest.popFirst() ?? commit
    case "--output": output = rest.popFirst() ?? output
    case "--scratch": folder = rest.popFirst() ?? folder
    case "--entries": scale.counts = rest.popFirst().flatMap(Int.init).map { [$0] } ?? scale.counts
    case "--tool": scale.tool = rest.popFirst()
    default:
      guard let suite = Suite(rawValue: word) else { throw BenchError("there is no suite \(word)") }
      suites.append(suite)
    }
  }
  let report = Report(isQuick: isQuick, commit: commit)
  let scratch = try Scratch(below: folder)
  for suite in suites.isEmpty ? Suite.defaults : suites {
    let (rowCount, start) = (report.rows.count, now())
    try await suite.run(report, scratch, scale)
    if report.rows.count == rowCount { throw BenchError("the suite \(suite.rawValue) measured nothing") }
    FileHandle.standardError.write(Data("Bench: \(suite.rawValue) took \((now() - start) / 1_000_000_000) s\n".utf8))
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
