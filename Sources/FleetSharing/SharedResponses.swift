import CacheActivity
import CachingClient
import FleetRedis

/// Serves requests with responses that other machines of a fleet have fetched, and shares those of this machine.
///
/// To the caching client this is a shared cache before the origin.
package final class SharedResponses: TransportLayer {
  private let objects: SharedObjects

  /// - Parameters:
  ///   - digest: The digests that name the responses in Redis.
  ///   - log: The log of purges, against which each response is checked.
  ///   - activity: The counters of the cache's directory.
  package init(
    _ fleet: FleetAddress, digest: FleetDigest, settings: any SharingSettings, log: any FleetLog,
    activity: ActivityReference
  ) {
    objects = SharedObjects(fleet, digest: digest, settings: settings, log: log, activity: activity)
  }

  deinit { close() }

  /// Ends the threads after their present work. Later requests go to the origin.
  package func close() { objects.close() }

  package func send(_ request: OutgoingRequest, over transport: any Transport) async throws -> IncomingResponse {
    guard let position = objects.log.position, let shared = SharedRequest(request, objects.digest, objects.settings)
    else { return try await transport.send(request) }
    return try await FleetFetch(
      objects: objects, request: request, shared: shared, transport: transport, position: position
    ).run()
  }
}
