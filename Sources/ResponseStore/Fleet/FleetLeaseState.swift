/// The lease of a machine in a fleet, as a process that is not in the fleet reads it from the fleet file.
package struct FleetLeaseState: Sendable, Hashable {
  /// Whether the machine may serve stored responses without validating them.
  package var isValid: Bool
  /// The time until the lease ends, or since it ended, in seconds. Nil for a machine that has had no lease since it was
  /// started or joined.
  package var seconds: Double?

  /// The time since the lease ended in milliseconds; 0 while it is valid, and if the end is not known.
  var cutOffMilliseconds: Int { isValid ? 0 : seconds.map { Int($0 * 1000) } ?? 0 }

  /// Reads the lease of a directory's machine. Costs some microseconds.
  ///
  /// Nil for a directory that is in no fleet, and if the file cannot be read.
  init?(directory: String) {
    guard let machine = FleetMachineState.read(directory: directory) else { return nil }
    isValid = machine.hasLease
    seconds = machine.leaseSecondsLeft ?? machine.secondsCutOff
  }
}

extension ResponseStore {
  /// The lease of the machine in its fleet; nil for a directory without a fleet, and if the lease cannot be read.
  package var fleetLease: FleetLeaseState? { FleetLeaseState(directory: directory) }
}
