import CachingClient
import Foundation
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("A clock that is set back")
struct ClockTests {
  @Test("A response that was stored while the clock was ahead is validated once", arguments: [true, false])
  func storedAhead(inMemory: Bool) async throws {
    try await withCache(memory: inMemory ? 4 << 20 : 0, disk: inMemory ? 0 : 16 << 20) {
      let fields = [
        ("ETag", "\"1\""), ("Cache-Control", "max-age=600, stale-while-revalidate=600, stale-if-error=600"),
      ]
      return $0["If-None-Match"] == nil ? Reply(200, fields, "body") : Reply(304, fields)
    } _: { fixture, origin in
      let request = URLRequest(url: origin.url("/a"))
      let tenYears = 315_576_000.0
      fixture.clock.advance(by: tenYears)
      #expect(try await fixture.cache.load(request).source == .miss)
      #expect(try await fixture.cache.load(request).source == .hit)
      fixture.clock.advance(by: -tenYears)
      let result = try await fixture.cache.load(request)
      #expect(result.source == .revalidated && result.data.text == "body")
      #expect(result.reason == .validatorMatches)
      #expect(try await fixture.cache.load(request).source == .hit)
      fixture.clock.advance(by: 599)
      #expect(try await fixture.cache.load(request).source == .hit)
      fixture.clock.advance(by: 1)
      #expect(try await fixture.cache.load(request).source == .stale)
      await fixture.cache.finishBackgroundWork()
    }
  }
}
