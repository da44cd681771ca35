import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

/// What an origin can do to any process that uses `URLSession` on Linux, with this package or without. Neither can be kept
/// from happening by a cache in front of the session. When a test here fails, Foundation has got better: then the case
/// belongs into the conformance tables.
@Suite("Limits of Foundation")
struct FoundationLimits {
  /// Row 14: trailers never reach the cache. curl hands them to Foundation as lines of a header, which takes them for the
  /// beginning of another response and stops the process when none follows.
  @Test("Trailers end the process, without a cache too")
  func trailers() async {
    await #expect(processExitsWith: .failure) {
      let origin = try LoopbackOrigin { _ in Reply(200, [], "body").chunked(trailers: [("X-Trailer", "1")]) }
      _ = try await URLSession(configuration: .ephemeral).data(from: origin.url("/"))
    }
  }

  @Test("A connection that ends behind the status line ends the process, without a cache too")
  func headWithoutEnd() async {
    await #expect(processExitsWith: .failure) {
      let origin = try LoopbackOrigin { _ in Reply(200, [("X-A", "1")], "body").cut(.inHead(after: 20)) }
      _ = try? await URLSession(configuration: .ephemeral).data(from: origin.url("/"))  // An error would be right.
    }
  }
}
