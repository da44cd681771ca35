import CacheActivity
import Foundation
import LMDBURLCache

/// The lease of a machine in words.
struct LeaseReport {
  let machine: FleetMachineState

  /// Whether the machine has a lease, or since when it has none, and why.
  var text: String {
    if let seconds = machine.leaseSecondsLeft { return "valid for \(Format.seconds(seconds))" }
    let reason = machine.failure.map { " (\(Format.visible($0)))" } ?? ""
    guard let seconds = machine.secondsCutOff else {
      return "none, so each stored response is validated before it is used\(reason)"
    }
    return "ended at \(Format.localTime(Date() - seconds)), \(Format.duration(seconds)) ago, "
      + "so each stored response is validated before it is used\(reason)"
  }

  /// The lease for a line on standard error; nil while it is valid.
  ///
  /// - Parameter machine: The state of the machine; nil outside of a fleet.
  static func warning(_ machine: FleetMachineState?) -> String? {
    guard let machine, !machine.hasLease else { return nil }
    return "This machine has no valid lease in its fleet: \(LeaseReport(machine: machine).text)."
  }
}

/// Says on standard error when the machine of a directory loses its lease, and when it has one again.
struct LeaseWatch {
  let directory: CacheDirectory
  /// The command that says so.
  let command: String
  private var wasValid = true

  init(directory: CacheDirectory, command: String) {
    self.directory = directory
    self.command = command
  }

  mutating func update() {
    guard let machine = FleetMachineState.read(directory: directory.path), machine.hasLease != wasValid else { return }
    wasValid = machine.hasLease
    Output.error("urlcache \(command): \(LeaseReport.warning(machine) ?? "This machine has a valid lease again.")\n")
  }
}
