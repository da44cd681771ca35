import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import RedisTier
import Synchronization
import Testing

/// Shared responses that are also those of equivalent URLs (No-Vary-Search): a removal of one URL ends all of them.
@Suite("Shared responses of equivalent URLs in a fleet", .needsRedis, .timeLimit(.minutes(1)))
struct SharedEquivalentTests {
  private enum Change: CaseIterable {
    case url, prefix, put, remove, long

    /// Whether the removal waits until all machines obey. The others wait for at most 100 ms.
    var isConfirmed: Bool { self != .put && self != .remove }
  }

  @Test("A removal of an equivalent URL covers the shared copy", arguments: Change.allCases)
  private func removal(by change: Change) async throws {
    let page = Mutex("old")
    let fleet = try FleetFixture(handler: { request in
      if request.method == "PUT" { return Reply(204) }
      return Reply(
        200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", #"params=("utm")"#)], page.withLock { $0 })
    })
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    // A URL that is too long for the log is purged by a digest.
    let rest = change == .long ? "&q=" + String(repeating: "x", count: 600) : ""
    func url(_ campaign: Int) -> URL { fleet.origin.url("/p?utm=\(campaign)\(rest)") }
    #expect(try await one.get(url(1)) == "old")
    try await fleet.waitForObjects(1)
    page.withLock { $0 = "new" }
    switch change {
    case .url, .long: try await one.cache.purge(.url(url(9)))
    case .prefix: try await one.cache.purge(.prefix(fleet.origin.url("/p?u")))
    case .put:
      var put = URLRequest(url: url(9))
      put.httpMethod = "PUT"
      _ = try await one.cache.data(for: put)
    case .remove: one.cache.removeCachedResponse(for: URLRequest(url: url(9)))
    }
    for campaign in [1, 9] { #expect(try await one.get(url(campaign)) == "new", "\(change) \(campaign)") }
    if !change.isConfirmed {
      while try await other.get(url(1)) != "new" { try await Task.sleep(for: .milliseconds(1)) }
    }
    for campaign in [1, 9] { #expect(try await other.get(url(campaign)) == "new", "\(change) \(campaign)") }
  }

  @Test("A removal of another path, or of a URL without equivalents, leaves shared copies")
  func others() async throws {
    let fleet = try FleetFixture(handler: { request in
      Reply(
        200, [("Cache-Control", "max-age=600")] + (request.path == "/p" ? [("No-Vary-Search", "params")] : []),
        "\(request.number)")
    })
    let (one, other) = (try await fleet.machine("1"), try await fleet.machine("2"))
    let (first, plain) = (
      try await one.get(fleet.origin.url("/p?x=1")), try await one.get(fleet.origin.url("/q?x=1"))
    )
    try await fleet.waitForObjects(2)
    try await one.cache.purge(.url(fleet.origin.url("/pp?x=1")))
    try await one.cache.purge(.url(fleet.origin.url("/q?x=2")))
    #expect(try await other.get(fleet.origin.url("/p?x=1")) == first)
    #expect(try await other.get(fleet.origin.url("/q?x=1")) == plain)
    #expect(fleet.origin.requestCount == 2)
  }
}
