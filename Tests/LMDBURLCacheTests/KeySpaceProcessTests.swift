import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Key spaces that two processes with one directory make, use and remove at the same time.
@Suite("Key spaces of two processes", .timeLimit(.minutes(1)))
struct KeySpaceProcessTests {
  enum Kind: String, CaseIterable, Codable {
    case users, queries, equivalentURLs
  }

  /// Holds requests back until both processes have sent theirs.
  private final class MeetingPoint: Sendable {
    private let arrived = Mutex<[String: Set<String>]>([:])

    func wait(at place: String, _ process: String) {
      arrived.withLock { _ = $0[place, default: []].insert(process) }
      waitUntil(within: .seconds(20)) { arrived.withLock { $0[place]?.count == 2 } }
    }
  }

  private static func origin(_ kind: Kind) throws -> LoopbackOrigin {
    let point = MeetingPoint()
    return try LoopbackOrigin { request in
      if request.method == "PUT" { return Reply(204) }
      point.wait(at: request.path + (request["X-Round"] ?? ""), request["X-Process"] ?? "")
      if request.path.hasPrefix("/meet") { return Reply(200, [("Cache-Control", "no-store")]) }
      return Reply(
        200,
        [("Cache-Control", "private, max-age=600")]
          + (kind == .equivalentURLs ? [("No-Vary-Search", #"params=("utm")"#)] : []),
        "round \(request["X-Round"] ?? "")")
    }
  }

  /// One of the two processes.
  private struct Side {
    static let burstCount = 10
    static let memberCount = 4

    let kind: Kind
    let process: Int
    let base: String
    let cache: LMDBURLCache

    init(_ kind: Kind, process: Int, directory: String, port: UInt16) throws {
      self.kind = kind
      self.process = process
      base = "http://127.0.0.1:\(port)"
      cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: directory), memoryCapacity: 0, diskCapacity: 16 << 20)
    }

    func url(_ burst: Int, _ member: Int = 0) -> URL {
      URL(string: base + "/b\(burst)" + (kind == .equivalentURLs ? "?utm=\(process)&id=\(member)" : ""))!
    }

    func request(_ burst: Int, _ member: Int, round: Int) -> URLRequest {
      var request = URLRequest(url(burst, member), ["X-Process": "\(process)", "X-Round": "\(round)"])
      switch kind {
      case .users: request.setValue("Bearer \(member)", forHTTPHeaderField: "Authorization")
      case .queries:
        request.httpMethod = "QUERY"
        request.setValue("text/plain", forHTTPHeaderField: "Content-Type")
        request.httpBody = Data("content \(member)".utf8)
      case .equivalentURLs: break
      }
      return request
    }

    /// Waits for the other process.
    func meet(_ place: Int) async throws {
      _ = try await cache.data(for: URLRequest(URL(string: base + "/meet\(place)")!, ["X-Process": "\(process)"]))
    }

    /// Sends the requests of this process, those of each burst at once.
    func load(round: Int) async throws {
      for burst in 0..<Self.burstCount {
        try await withThrowingTaskGroup { group in
          for member in 0..<Self.memberCount {
            let request = request(burst, process * Self.memberCount + member, round: round)
            group.addTask { [cache] in _ = try await cache.data(for: request) }
          }
          try await group.waitForAll()
        }
      }
      cache.flush()
    }

    /// The number of responses that are found, of those that both processes have stored.
    func foundCount(round: Int) -> Int {
      (0..<Self.burstCount).reduce(0) { count, burst in
        count
          + (0..<2 * Self.memberCount).count {
            cache.cachedResponse(for: request(burst, $0, round: round))?.data.text == "round \(round)"
          }
      }
    }

    /// Removes the responses of every other burst.
    func remove() async throws {
      for burst in stride(from: process, to: Self.burstCount, by: 2) {
        switch burst / 2 % 4 {
        case 0: try await cache.purge(.url(url(burst)))
        case 1: try await cache.purge(.prefix(URL(string: base + "/b\(burst)")!))
        case 2: cache.removeCachedResponse(for: URLRequest(url: url(burst)))
        default: _ = try await cache.data(for: URLRequest(url(burst), method: "PUT"))
        }
      }
    }

    /// Returns the numbers of responses that are found after the first round, after removals, and after another round.
    func run() async throws -> [Int] {
      try await meet(0)
      try await load(round: 1)
      try await meet(1)
      var counts = [foundCount(round: 1)]
      try await meet(2)
      try await remove()
      try await meet(3)
      counts.append(foundCount(round: 1))
      try await meet(4)
      try await load(round: 2)
      try await meet(5)
      counts.append(foundCount(round: 2))
      try await meet(6)
      return counts
    }
  }

  @Test(
    "Each process finds all that both have stored at once in new spaces, and nothing after a removal by either",
    arguments: Kind.allCases)
  func twoProcesses(kind: Kind) async throws {
    let directory = memoryDirectory(for: 64 << 20)
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(atPath: directory)
    }
    let origin = try Self.origin(kind)
    defer { origin.stop() }
    let total = 2 * Side.memberCount * Side.burstCount
    let side = try Side(kind, process: 0, directory: directory, port: origin.port)
    async let child: Void = {
      await #expect(processExitsWith: .success, "\(kind)") {
        [kind = kind as Kind, directory = directory as String, port = origin.port as UInt16, total = total as Int] in
        let counts = try await Side(kind, process: 1, directory: directory, port: port).run()
        precondition(counts == [total, 0, total], "\(counts)")
      }
    }()
    let counts = try await side.run()
    #expect(counts == [total, 0, total])
    await child
    side.cache.flush()
    #expect(side.cache.core.store?.checkInvariants() == [])
  }
}
