import Foundation

/// The arguments of the command line.
struct Arguments {
  static let usage = """
    Replays traces of requests through stores on disk with real bodies, and through LRU in memory for comparison.

    Usage: EvictionReplay FILE... [--capacity BYTES|PERCENT%]... [--processes] [--json]

      FILE        lines of time,key,size after a header line; .gz is decompressed
      --capacity  bytes (1234567, 16M, 2G), or a share of the trace's distinct bytes (10%); at least 1 MiB; can be
                  given several times; 0.1%, 1% and 10% by default
      --processes replays also in two and four processes that share the directory, one request at a time or
                  unthrottled, and takes a share of the store's own footprint with every object, too
      --json      prints one JSON array instead of a table

    """

  enum Capacity {
    case bytes(Int)
    case share(Double)

    func byteCount(of trace: Trace) -> Int {
      switch self {
      case .bytes(let count): count
      case .share(let share): Int(Double(trace.footprint) * share)
      }
    }
  }

  var files: [String] = []
  var capacities: [Capacity] = []
  var isJSON = false
  var usesProcesses = false
  /// The part of the requests and the store's directory, in a process that another replay started.
  var part: (number: Int, count: Int, directory: String, waitsForCommit: Bool)?

  init(_ arguments: [String]) throws {
    var rest = arguments[...]
    while let argument = rest.popFirst() {
      switch argument {
      case "--json": isJSON = true
      case "--processes": usesProcesses = true
      case "--part", "--part-in-step":
        let numbers = (rest.popFirst() ?? "").split(separator: "/").compactMap { Int($0) }
        guard numbers.count == 2, let directory = rest.popFirst() else {
          throw ReplayError("\(argument) is for internal use")
        }
        part = (numbers[0], numbers[1], directory, argument == "--part-in-step")
      case "--capacity":
        guard let text = rest.popFirst(), let capacity = Self.capacity(text) else {
          throw ReplayError("--capacity wants a number of bytes or a percentage above 0")
        }
        capacities.append(capacity)
      case _ where argument.hasPrefix("-"): throw ReplayError("unknown option \(argument)")
      default: files.append(argument)
      }
    }
    if files.isEmpty { throw ReplayError("no trace is named") }
    if capacities.isEmpty { capacities = [.share(0.001), .share(0.01), .share(0.1)] }
  }

  private static func capacity(_ text: String) -> Capacity? {
    if text.hasSuffix("%") {
      return Double(text.dropLast()).flatMap { $0 > 0 ? .share($0 / 100) : nil }
    }
    let units: [Character: Int] = ["K": 1 << 10, "M": 1 << 20, "G": 1 << 30]
    let unit = text.last.flatMap { units[$0] }
    let digits = unit == nil ? text : String(text.dropLast())
    guard let number = Int(digits), number > 0 else { return nil }
    let (count, overflow) = number.multipliedReportingOverflow(by: unit ?? 1)
    return overflow ? nil : .bytes(count)
  }
}

func replayStore(
  _ trace: Trace, _ path: String, capacity: Arguments.Capacity, usesProcesses: Bool, tell: (Outcome) -> Void
) throws {
  func inNewDirectory<R>(
    capacityByteCount: Int = capacity.byteCount(of: trace), _ body: (FullStoreReplay) throws -> R
  ) throws -> R {
    let directory = NSTemporaryDirectory() + "/replay-\(getpid())"
    // The directory may not exist. If it cannot be removed, it stays among the temporary files.
    defer { try? FileManager.default.removeItem(atPath: directory) }
    return try body(FullStoreReplay(trace: trace, capacityByteCount: capacityByteCount, directory: directory))
  }
  tell(try inNewDirectory { try $0.replay(as: "store") })
  tell(try inNewDirectory { try $0.replay(as: "store, restarted", restartsHalfway: true) })
  guard usesProcesses else { return }
  if case .share(let share) = capacity {
    let footprint = try inNewDirectory { try $0.footprint() }
    tell(
      try inNewDirectory(capacityByteCount: Int(Double(footprint) * share)) {
        try $0.replay(as: "store, own share")
      })
    tell(
      try inNewDirectory(capacityByteCount: Int(Double(footprint) * share)) {
        var outcome = try $0.replay(processCount: 1, path: path, waitsForCommit: true)
        outcome.policy = "own share, in step"
        return outcome
      })
  }
  for waitsForCommit in [true, false] {
    for processCount in waitsForCommit ? [1, 2, 4] : [2, 4] {
      tell(try inNewDirectory { try $0.replay(processCount: processCount, path: path, waitsForCommit: waitsForCommit) })
    }
  }
}

func column(_ text: String, _ width: Int) -> String { text.padding(toLength: width, withPad: " ", startingAt: 0) }

func run(_ arguments: Arguments) throws {
  var outcomes: [Outcome] = []
  // Print each line at once, as stores on disk take minutes.
  func tell(_ outcome: Outcome) {
    if outcomes.isEmpty, !arguments.isJSON {
      print(
        column("trace", 18), column("capacity B", 12), column("policy", 18),
        "objects %  bytes %  refused")
    }
    outcomes.append(outcome)
    guard !arguments.isJSON else { return }
    print(
      column(outcome.trace, 18), column(String(outcome.capacityByteCount), 12), column(outcome.policy, 18),
      String(format: "%8.2f %8.2f", outcome.objectHitRatio * 100, outcome.byteHitRatio * 100),
      outcome.refusedStores.map { "  \($0)" } ?? "")
    fflush(nil)
  }
  for file in arguments.files {
    let trace = try Trace(path: file)
    if let part = arguments.part {
      let capacity = arguments.capacities[0].byteCount(of: trace)
      let outcome = try FullStoreReplay(trace: trace, capacityByteCount: capacity, directory: part.directory)
        .replay(part: part.number, of: part.count, waitsForCommit: part.waitsForCommit)
      print(
        outcome.requests, outcome.hits, outcome.requestedByteCount, outcome.hitByteCount, outcome.refusedStores ?? 0)
      return
    }
    for capacity in arguments.capacities {
      let byteCount = capacity.byteCount(of: trace)
      tell(Replay.leastRecentlyUsed(trace, capacityByteCount: byteCount))
      try replayStore(trace, file, capacity: capacity, usesProcesses: arguments.usesProcesses, tell: tell)
    }
  }
  if arguments.isJSON {
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
    print(String(decoding: try encoder.encode(outcomes), as: UTF8.self))
    return
  }
  var policies: [String] = []
  for outcome in outcomes where !policies.contains(outcome.policy) { policies.append(outcome.policy) }
  for policy in policies {
    let those = outcomes.filter { $0.policy == policy }
    let count = Double(those.count)
    print(
      column("mean", 18), column("", 12), column(policy, 18),
      String(
        format: "%8.2f %8.2f", those.reduce(0) { $0 + $1.objectHitRatio } / count * 100,
        those.reduce(0) { $0 + $1.byteHitRatio } / count * 100))
  }
}

let words = Array(CommandLine.arguments.dropFirst())
if words.contains("--help") {
  print(Arguments.usage, terminator: "")
  exit(0)
}
do {
  try run(try Arguments(words))
} catch {
  FileHandle.standardError.write(Data("EvictionReplay: \(error)\n\(Arguments.usage)".utf8))
  exit(2)
}
