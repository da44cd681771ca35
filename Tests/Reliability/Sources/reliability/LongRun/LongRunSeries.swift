import Foundation
import Glibc
import LoopbackOrigin
import StoreContract
import Synchronization

/// Runs a mixed load for a long time, and fails if the memory that the cache has allocated goes on growing.
struct LongRunSeries {
  let setting: RunConfiguration
  let directory: String

  private static let workerCount = 16
  /// How often all operations end and the memory is read.
  private static let readingCount = 24
  /// By how many the number of descriptors may rise: idle connections come and go.
  private static let toleratedDescriptors = 300

  /// The growth after the first third, in which the tiers, the tables with a limit and the resolver's cache are filled.
  private struct Growth: CustomStringConvertible {
    private let first: HeapReading?
    private let last: HeapReading?
    private let growth: Int
    private let bytesPerOperation: Double

    init(_ readings: [HeapReading]) {
      let later = Array(readings.dropFirst(readings.count / 3))
      first = later.first
      last = later.last
      // Medians, because responses may still be on their way to the disk at a reading.
      func median(_ readings: ArraySlice<HeapReading>) -> (operations: Int, bytes: Int) {
        let bytes = readings.map(\.allocatedByteCount).sorted()
        guard let middle = readings.dropFirst(readings.count / 2).first else { return (0, 0) }
        return (middle.operationCount, bytes[bytes.count / 2])
      }
      let (before, after) = (median(later.prefix(later.count / 3)), median(later.suffix(later.count / 3)))
      growth = after.bytes - before.bytes
      bytesPerOperation = Double(growth) / Double(max(1, after.operations - before.operations))
    }

    /// Whether memory is left behind: one object at each second operation, because the smallest takes 32 bytes.
    ///
    /// Less than 2 MB in total can be the content of the memory tier, which differs between readings.
    var isLeak: Bool { bytesPerOperation > 16 && growth > 2_000_000 }

    var descriptors: Int { (last?.descriptorCount ?? 0) - (first?.descriptorCount ?? 0) }

    var description: String {
      guard let first, let last else { return "no readings" }
      func megabytes(_ value: (HeapReading) -> Int) -> String {
        String(format: "%.1f to %.1f MB", Double(value(first)) / 1e6, Double(value(last)) / 1e6)
      }
      return "after the first third, allocated memory \(megabytes { $0.allocatedByteCount }) "
        + "(\(String(format: "%.1f", bytesPerOperation)) bytes per operation), "
        + "the allocator's memory \(megabytes { $0.heapByteCount }), resident \(megabytes { $0.residentByteCount }), "
        + "descriptors \(first.descriptorCount) to \(last.descriptorCount), "
        + "threads \(first.threadCount) to \(last.threadCount)"
    }
  }

  func run(seconds: Double) -> Bool {
    let scenarios = LongRunScenario.all.filter { setting.only == nil || setting.only == $0.name }
    return scenarios.map { run($0, seconds: seconds) }.allSatisfy { $0 }
  }

  private func run(_ scenario: LongRunScenario, seconds: Double) -> Bool {
    makeDirectory(directory)
    defer { removeTree(directory) }
    let origin: LoopbackOrigin
    do {
      origin = try LoopbackOrigin(recordsRequests: false, handler: LongRunOrigin.reply)
    } catch { fail("no origin: \(error)") }
    defer { origin.stop() }
    // Foundation stores cookies in the home directory.
    let child = Child.start(
      ["longrun", scenario.name, directory, "\(Int(seconds * 1000))", "\(setting.seed)", "\(origin.port)"],
      outputPath: directory + "/process", environment: ["HOME": directory])
    let end = child.wait(seconds: seconds + 300)
    let output = child.output
    let readings = output.split(separator: "\n").compactMap { HeapReading(line: $0) }
    if setting.isVerbose || end != .exited(0) { say(String(output.suffix(20_000))) }
    let growth = Growth(readings)
    var outcomes: [String] = []
    if end != .exited(0) { outcomes.append("the process \(end)") }
    if readings.count != Self.readingCount { outcomes.append("only \(readings.count) readings") }
    if scenario.caches, growth.isLeak { outcomes.append("the allocated memory goes on growing") }
    if growth.descriptors > Self.toleratedDescriptors { outcomes.append("descriptors are left open") }
    let isGood = outcomes.isEmpty
    setting.report(
      "longrun: \(scenario.name)",
      "\(Int(seconds)) s (seed \(setting.seed)): \(readings.last?.operationCount ?? 0) operations, half of them cancelled, "
        + "\(LongRunOrigin.hostCount) hosts: \(growth): "
        + (isGood ? "OK" : "FAILED, " + outcomes.joined(separator: ", ")))
    return isGood
  }

  private final class Counters: Sendable {
    let operations = Atomic<Int>(0)
    let isFinished = Atomic<Bool>(false)
  }

  /// Runs the child process of a scenario and exits.
  static func work(
    _ scenario: LongRunScenario, directory: String, seconds: Double, seed: UInt64, port: Int
  ) throws -> Never {
    let clients = try LongRunClients(scenario, directory: directory, port: port)
    let start = now()
    let counters = Counters()
    Task.detached {
      for reading in 1...readingCount {
        let end = start + seconds * Double(reading) / Double(readingCount)
        await withTaskGroup(of: Void.self) { group in
          for worker in 0..<workerCount {
            group.addTask {
              var random = SeededRandom(seed &* 31 &+ UInt64(worker) &+ UInt64(reading) << 32)
              while now() < end {
                await clients.run(scenario.operations[random.below(scenario.operations.count)], &random)
                counters.operations.add(1, ordering: .relaxed)
              }
            }
          }
        }
        await clients.settle()
        say(HeapReading(operationCount: counters.operations.load(ordering: .relaxed)).line)
      }
      counters.isFinished.store(true, ordering: .releasing)
    }
    while !counters.isFinished.load(ordering: .acquiring) {
      usleep(10_000)
      if now() > start + seconds + 240 { fail("an operation did not end") }
    }
    exit(clients.failureCount == 0 ? 0 : 1)
  }
}
