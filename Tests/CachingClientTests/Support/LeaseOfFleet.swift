import CacheModel
import CachingClient

/// A membership in a fleet that has a lease and no other machines.
final class LeaseOfFleet: FleetMembership {
  let lease: FleetLease

  init(_ lease: FleetLease) { self.lease = lease }

  func start(_ node: FleetNode) {}
  func purge(_ removal: Removal, timeout: Duration?, _ removeHere: () -> Void) throws -> FleetPurgeResult {
    removeHere()
    return FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
  }
  func post(_ removals: [Removal], _ removeHere: () -> Void) { removeHere() }
  func send(_ request: OutgoingRequest, over transport: any Transport) async throws -> IncomingResponse {
    try await transport.send(request)
  }
  func leave() {}
}
