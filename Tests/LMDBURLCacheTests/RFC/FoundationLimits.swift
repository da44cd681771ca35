import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

/// Ways in which an origin can end any process that uses `URLSession` on Linux, with or without this package.
///
/// A cache in front of the session cannot prevent them. If a test fails, Foundation has improved: move the case to the
/// conformance tables.
@Suite("Limits of Foundation")
struct FoundationLimits {
  /// Row 14: trailers never reach the cache.
  ///
  /// libcurl passes trailers to Foundation as header lines. Foundation treats them as the start of another response and
  /// ends the process if none follows.
  @Test("Trailers end the process, also without a cache")
  func trailers() async {
    await #expect(processExitsWith: .failure) {
      let origin = try LoopbackOrigin { _ in Reply(200, [], "body").chunked(trailers: [("X-Trailer", "1")]) }
      _ = try await URLSession(configuration: .ephemeral).data(from: origin.url("/"))
    }
  }

  @Test("A connection that ends after the status line ends the process, also without a cache")
  func headWithoutEnd() async {
    await #expect(processExitsWith: .failure) {
      let origin = try LoopbackOrigin { _ in Reply(200, [("X-A", "1")], "body").cut(.inHead(after: 20)) }
      _ = try? await URLSession(configuration: .ephemeral).data(from: origin.url("/"))  // An error would be correct.
    }
  }
}
