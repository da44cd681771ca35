import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// The end of the threads and connections of a cache and its sessions.
@Suite("The end of the last use", .timeLimit(.minutes(1)))
struct EndOfUseTests {
  /// The ways to load that have transports of their own.
  enum Way: String, CaseIterable, Codable {
    case sessionTask
    case overSession
    case overPlainSession
    case withoutSession
    case bodyStream
  }

  @Test("When the last cache and session are released, the I/O thread and the connections end", arguments: Way.allCases)
  func release(way: Way) async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "no-store")], "hello") }
    defer { origin.stop() }
    await #expect(processExitsWith: .success) {
      [address = origin.url("/a").absoluteString as String, way = way as Way] in
      let url = try #require(URL(string: address))
      let directory = FileManager.default.temporaryDirectory.appending(path: "end-of-use-\(UUID().uuidString)")
      defer { try? FileManager.default.removeItem(at: directory) }  // A leftover harms nothing.
      // What a process keeps from its first session on exists from here.
      _ = try await URLSession(configuration: .ephemeral).data(from: url)
      let before = try sockets()
      for _ in 0..<2 { try await load(url, way, directory) }
      #expect(try await waitInTask { IOThread.runningCount == 0 })
      #expect(try await waitInTask { try sockets().count <= before.count })
      #expect(try await waitInTask { try descriptors().allSatisfy { !$0.hasPrefix(directory.path) } })
    }
  }
}

private func load(_ url: URL, _ way: EndOfUseTests.Way, _ directory: URL) async throws {
  let cache = try LMDBURLCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 8 << 20)
  let session = URLSession(configuration: .ephemeral.caching(with: cache))
  let plain = URLSession(configuration: .ephemeral)
  var request = URLRequest(url: url)
  let data =
    switch way {
    case .sessionTask: try await session.data(for: request).0
    case .overSession: try await cache.data(for: request, from: session).0
    case .overPlainSession: try await cache.data(for: request, from: plain).0
    case .withoutSession: try await cache.data(for: request).0
    case .bodyStream:
      try await {
        request.httpMethod = "POST"
        request.httpBodyStream = InputStream(data: Data("content".utf8))
        return try await cache.data(for: request).0
      }()
    }
  #expect(data == Data("hello".utf8))
}

private func sockets() throws -> [String] { try descriptors().filter { $0.hasPrefix("socket:") } }

/// The targets of the process's descriptors.
private func descriptors() throws -> [String] {
  try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").compactMap {
    // The descriptor of the folder itself is closed now.
    try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/fd/\($0)")
  }
}
