import Foundation
import LMDBURLCache
import ResponseStore

/// The lease of a machine in words.
struct LeaseReport {
  let lease: FleetLeaseState

  /// Whether the machine has a lease, and since when it has none.
  var text: String {
    guard !lease.isValid else { return "valid for \(Format.seconds(lease.seconds ?? 0))" }
    guard let seconds = lease.seconds else { return "none, so each stored response is validated before it is used" }
    return "ended at \(Format.localTime(Date() - seconds)), \(Format.duration(seconds)) ago, "
      + "so each stored response is validated before it is used"
  }

  /// The lease for a line on standard error; nil while it is valid.
  ///
  /// - Parameter lease: The lease; nil outside of a fleet.
  static func warning(_ lease: FleetLeaseState?) -> String? {
    guard let lease, !lease.isValid else { return nil }
    return "This machine has no valid lease in its fleet: \(LeaseReport(lease: lease).text)."
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
    guard let lease = directory.fleetLease, lease.isValid != wasValid else { return }
    wasValid = lease.isValid
    Output.error("urlcache \(command): \(LeaseReport.warning(lease) ?? "This machine has a valid lease again.")\n")
  }
}
