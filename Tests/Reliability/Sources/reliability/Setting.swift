import FoundationEssentials
import Glibc

/// How a run was asked for, and where it works.
struct Setting {
  var isQuick = false
  var isVerbose = false
  var seed: UInt64
  /// A directory on a disk.
  var scratch: String
  /// The library that records, or fails, what a process writes.
  var recorder = ""
  /// The program `urlcache`.
  var tool = ""
  /// The one scenario to run, of those of the series.
  var only: String?
  /// Lines for the results.
  var resultsPath: String

  func report(_ name: String, _ text: String) {
    say("\(name): \(text)")
    guard let file = fopen(resultsPath, "a") else { return }
    fputs("\(name)\t\(text)\n", file)
    fclose(file)
  }
}
