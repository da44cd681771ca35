import FoundationEssentials
import Glibc
import Synchronization

/// The configuration of a run.
struct RunConfiguration {
  var isQuick = false
  var isVerbose = false
  var seed: UInt64
  /// The directory for temporary files.
  var scratch: String
  /// The path of the library that records the writes of a process, or makes them fail.
  var recorder = ""
  /// The path of the library that changes the clocks and the boot ID of a process.
  var machineLibrary = ""
  /// Whether the series `fleet` breaks each rule of its protocol, and expects to find a purged response.
  var breaksRules = false
  /// The path of the program `urlcache`.
  var tool = ""
  /// The only scenario to run in the series; nil runs all scenarios.
  var only: String?
  /// The duration of each scenario of the series `processes`, `tiers`, `users`, `contract`, `fleet` and `longrun`; nil
  /// uses the default.
  var seconds: Double?
  /// The file to which results are appended, one line each.
  var resultsPath: String
  /// The number of results of this run.
  let resultCount = ResultCount()

  /// A number that the copies of a configuration share.
  final class ResultCount: Sendable {
    private let atomic = Atomic<Int>(0)
    var value: Int { atomic.load(ordering: .relaxed) }
    func increment() { atomic.add(1, ordering: .relaxed) }
  }

  /// Prints a result and appends it to the results file.
  func report(_ name: String, _ text: String) {
    say("\(name): \(text)")
    resultCount.increment()
    guard let file = fopen(resultsPath, "a") else { return }
    fputs("\(name)\t\(text)\n", file)
    fclose(file)
  }
}
