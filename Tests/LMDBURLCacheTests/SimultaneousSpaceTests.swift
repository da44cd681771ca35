import Foundation
import FoundationNetworking
import LoopbackOrigin
import Testing

@testable import LMDBURLCache

/// Two processes that store the first responses in a key space at the same moment.
@Suite("Key spaces that two processes make at once", .timeLimit(.minutes(1)))
struct SimultaneousSpaceTests {
  enum Kind: String, CaseIterable, Codable {
    case users, queries, equivalents

    func request(_ number: Int, by process: String, to port: UInt16) -> URLRequest {
      let equivalent = self == .equivalents ? "?id=\(process)&utm=\(number)" : ""
      var request = URLRequest(url: URL(string: "http://127.0.0.1:\(port)/\(rawValue)/\(number)\(equivalent)")!)
      switch self {
      case .users: request.setValue("Bearer \(process)", forHTTPHeaderField: "Authorization")
      case .queries:
        request.httpMethod = "QUERY"
        request.httpBody = Data(#"{"from": "\#(process)"}"#.utf8)
        request.setValue("application/json", forHTTPHeaderField: "Content-Type")
      case .equivalents: break
      }
      return request
    }
  }

  /// Lets the two first requests for a path through when both have arrived.
  private final class Meeting: @unchecked Sendable {
    // Sendable: the condition guards the counts.
    private let condition = NSCondition()
    private var counts: [String: Int] = [:]

    func arrive(at path: String) {
      condition.lock()
      defer { condition.unlock() }
      counts[path, default: 0] += 1
      condition.broadcast()
      while counts[path, default: 0] < 2 {
        // A process that does not come fails the test by the number of its requests.
        guard condition.wait(until: Date(timeIntervalSinceNow: 10)) else { return }
      }
    }
  }

  private static let urlCount = 20

  private static func loadAll(_ kind: Kind, by process: String, _ cache: LMDBURLCache, port: UInt16) async throws {
    for number in 0..<urlCount {
      let (data, _) = try await cache.data(for: kind.request(number, by: process, to: port))
      precondition(data.text == process, data.text)
    }
  }

  @Test("Each process finds the responses of both", arguments: Kind.allCases)
  func bothFind(kind: Kind) async throws {
    let meeting = Meeting()
    try await withCache(memory: 0, disk: 16 << 20) {
      // Both processes have the system's clock.
      $0.clock = { Date() }
    } origin: { request in
      meeting.arrive(at: request.path)
      let process =
        switch kind {
        case .users: request["Authorization"].map { String($0.dropFirst("Bearer ".count)) }
        case .queries: request.body.text.contains("child") ? "child" : "parent"
        case .equivalents: request.target.contains("id=child") ? "child" : "parent"
        }
      var fields = [("Cache-Control", "max-age=600"), ("Content-Type", "text/plain")]
      if kind == .equivalents { fields.append(("No-Vary-Search", #"params=("utm")"#)) }
      return Reply(200, fields, process ?? "unknown")
    } _: { fixture, origin in
      let directory = fixture.directory.path
      let child = Task { [port = origin.port] in
        _ = await #expect(processExitsWith: .success) {
          [kind = kind as Kind, directory = directory as String, port = port as UInt16] in
          let cache = try LMDBURLCache(
            directory: URL(fileURLWithPath: directory), memoryCapacity: 0, diskCapacity: 16 << 20)
          try await SimultaneousSpaceTests.loadAll(kind, by: "child", cache, port: port)
          precondition(cache.flush())
          withExtendedLifetime(cache) { exit(0) }
        }
      }
      try await Self.loadAll(kind, by: "parent", fixture.cache, port: origin.port)
      _ = await child.value
      #expect(fixture.cache.flush())
      #expect(origin.requestCount == 2 * Self.urlCount)
      for process in ["parent", "child"] {
        try await Self.loadAll(kind, by: process, fixture.cache, port: origin.port)
      }
      #expect(origin.requestCount == 2 * Self.urlCount, "The responses of both processes are found.")
    }
  }
}
