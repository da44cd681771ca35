import Foundation

/// One row of the results: the median of several rounds for one peer and scenario.
struct Row: Codable {
  var suite: String
  /// The metric, for example "hit" or "durable store". `labels.py` has the names that readers see.
  var measure: String
  /// The size of the fixture, or other conditions.
  var scenario: String
  var peer: String
  var unit: String
  var median: Double
  var least: Double
  /// A quarter of the rounds are below, a quarter above: how far medians differ without a cause.
  var lowerQuartile: Double
  var upperQuartile: Double
  var most: Double
  var rounds: Int
  /// Whether lower values are better.
  var lessIsBetter = true
}

/// Collects rows, prints each at once, and writes all of them as JSON.
final class Report {
  private(set) var rows: [Row] = []
  let isQuick: Bool
  /// The commit that is measured.
  private let commit: String
  /// The share of the processors that other programs used in the second before the run, in percent.
  private let busyPercent: Double

  init(isQuick: Bool, commit: String) {
    self.isQuick = isQuick
    self.commit = commit
    let before = ProcessorTicks()
    sleep(1)
    busyPercent = (ProcessorTicks() - before).busyPercent
  }

  func add(
    _ suite: String, _ measure: String, _ scenario: String, _ peer: String, unit: String, _ samples: [Double],
    lessIsBetter: Bool = true
  ) {
    guard !samples.isEmpty else { return }
    let sorted = samples.sorted()
    let row = Row(
      suite: suite, measure: measure, scenario: scenario, peer: peer, unit: unit, median: median(sorted),
      least: sorted[0], lowerQuartile: percentile(sorted, 0.25), upperQuartile: percentile(sorted, 0.75),
      most: sorted[sorted.count - 1], rounds: sorted.count, lessIsBetter: lessIsBetter)
    rows.append(row)
    func column(_ text: String, _ width: Int) -> String {
      text.count < width ? text.padding(toLength: width, withPad: " ", startingAt: 0) : text
    }
    let line = [column(suite, 8), column(measure, 24), column(scenario, 20), column(peer, 34)].joined(separator: " ")
    let figures = String(format: " %14.1f %@  (%.1f to %.1f)\n", row.median, unit, row.least, row.most)
    FileHandle.standardOutput.write(Data((line + figures).utf8))
  }

  private struct Document: Codable {
    var commit: String
    var date: String
    var machine: String
    var busyPercent: Double
    var isQuick: Bool
    var rows: [Row]
  }

  func write(to path: String) throws {
    let document = Document(
      commit: commit, date: Self.today, machine: Self.machine, busyPercent: busyPercent, isQuick: isQuick, rows: rows)
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
    try encoder.encode(document).write(to: URL(fileURLWithPath: path))
  }

  private static var today: String {
    let format = DateFormatter()
    format.dateFormat = "yyyy-MM-dd"
    format.locale = Locale(identifier: "en_US_POSIX")
    return format.string(from: Date())
  }

  /// The number and model of the processors, the memory, and the system.
  private static var machine: String {
    func lines(_ path: String) -> [Substring] {
      guard let data = FileManager.default.contents(atPath: path) else { return [] }
      return String(decoding: data, as: UTF8.self).split(separator: "\n")
    }
    let model =
      lines("/proc/cpuinfo").first { $0.hasPrefix("model name") }?.split(separator: ":").last ?? "unknown processor"
    let system = lines("/etc/os-release").first { $0.hasPrefix("PRETTY_NAME") }?.split(separator: "\"").last ?? "Linux"
    let kernel = lines("/proc/sys/kernel/osrelease").first ?? ""
    let memory = ProcessInfo.processInfo.physicalMemory >> 30
    let cores = ProcessInfo.processInfo.processorCount
    return "\(cores) cores of \(model.drop(while: { $0 == " " })), \(memory) GiB, \(system), Linux \(kernel)"
  }
}

func median(_ sorted: [Double]) -> Double {
  guard !sorted.isEmpty else { return .nan }
  let middle = sorted.count / 2
  return sorted.count % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/// Returns the value that a share of the samples does not exceed.
func percentile(_ sorted: [Double], _ share: Double) -> Double {
  sorted.isEmpty ? .nan : sorted[min(sorted.count - 1, Int(share * Double(sorted.count)))]
}
