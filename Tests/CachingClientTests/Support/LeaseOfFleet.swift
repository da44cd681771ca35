import CacheModel
import CachingClient

/// A membership in a fleet that has a lease and no other machines.
final class LeaseOfFleet: FleetMembership {
  let lease: FleetLease

  init(_ lease: FleetLease) { self.lease = lease }

  func start(_ node: FleetNode) {}
  func announce(_ removals: [Removal]) -> [AnnouncedRemoval] { [] }
  func purge(_ removals: [AnnouncedRemoval], timeout: Duration?) throws -> FleetPurgeResult {
    FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
  }
  func post(_ removals: [AnnouncedRemoval]) {}
  func send(_ request: OutgoingRequest, over transport: any Transport) async throws -> IncomingResponse {
    try await transport.send(request)
  }
  func leave() {}
}
