import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin

/// Many users of one URL, each with a response of its own: all are hits in the next round, a hit costs the same with
/// one user and with many, and one purge reaches all.
enum UsersOfOneURL {
  private static let bodyByteCount = 1024
  /// The number of hits of which the median is taken.
  private static let timedCount = 5000

  static func run(_ directory: String, count: Int, memory: Int) async throws {
    let padding = String(repeating: "x", count: bodyByteCount)
    let origin = try LoopbackOrigin(recordsRequests: false) { request in
      let user = request["Authorization"] ?? ""
      return Reply(200, [("Cache-Control", "private, max-age=86400")], user + padding.dropFirst(user.utf8.count))
    }
    defer { origin.stop() }
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory), memoryCapacity: memory, diskCapacity: 1 << 30)
    let url = origin.url("/me")

    /// Returns the times of requests of users in seconds.
    func load(_ users: some Sequence<Int>) async throws -> [Double] {
      var seconds: [Double] = []
      for user in users {
        let name = "Bearer \(user)-4f2a"
        var request = URLRequest(url: url)
        request.setValue(name, forHTTPHeaderField: "Authorization")
        let began = now()
        let (data, _) = try await cache.data(for: request)
        seconds.append(now() - began)
        Scenarios.expect(data.starts(with: Data((name + "x").utf8)), "user \(user) got the response of another one")
        Scenarios.expect(data.count == bodyByteCount, "user \(user) got \(data.count) bytes")
      }
      return seconds.sorted()
    }
    func expectFetches(_ number: Int, _ text: String) {
      Scenarios.expect(
        origin.requestCount == number, "\(text), \(origin.requestCount) instead of \(number) were fetched")
    }

    _ = try await load([0])
    let alone = try await load(repeatElement(0, count: timedCount))
    _ = try await load(1..<count)
    cache.flush()
    expectFetches(count, "after the first round")
    let round = try await load(0..<count)
    expectFetches(count, "after the next round")
    let among = try await load(repeatElement(0, count: timedCount))
    let began = now()
    try await cache.purge(.url(url))
    let purge = now() - began
    for user in 0..<count {
      var request = URLRequest(url: url)
      request.setValue("Bearer \(user)-4f2a", forHTTPHeaderField: "Authorization")
      Scenarios.expect(cache.cachedResponse(for: request) == nil, "user \(user) has a response after the purge")
    }
    cache.flush()
    func microseconds(_ seconds: [Double]) -> String { String(format: "%.1f µs", seconds[seconds.count / 2] * 1e6) }
    say(
      "\(count) users of one URL, \(memory >> 20) MiB of memory: all hits in the next round, none after a purge; a hit "
        + "of one user takes \(microseconds(alone)) alone and \(microseconds(among)) among the others ("
        + String(format: "%.2f×", among[among.count / 2] / alone[alone.count / 2])
        + "), one of each user \(microseconds(round)), and the purge \(String(format: "%.1f ms", purge * 1000))")
  }
}
