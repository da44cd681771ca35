import CachingClient
import CurlTransport
import FoundationEssentials
import Glibc
import LoopbackOrigin
import Testing

/// Tests of the limits of concurrent requests.
@Suite("Limits of the curl transport", .timeLimit(.minutes(1)))
struct LimitTests {
  @Test("Concurrent requests per origin and in total stay within the limits")
  func limits() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { one in
      try await withOrigin { _ in
        Reply(200).held(at: gate)
      } _: { other in
        let transport = directTransport {
          $0.maximumConnectionsPerOrigin = 3
          $0.maximumConnections = 5
        }
        await withTaskGroup(of: Outcome.self) { group in
          for number in 0..<40 {
            group.addTask { await transport.outcome((number < 20 ? one : other).url()) }
          }
          // Three requests of one origin and two of the other have connections; they wait at the gate.
          await gate.waitForArrivals(count: 5)
          #expect(one.requestCount + other.requestCount == 5)
          #expect(max(one.requestCount, other.requestCount) == 3)
          gate.open()
          for await outcome in group { #expect(outcome == .complete(200, "")) }
        }
      }
    }
  }

  @Test("An origin that does not respond does not block requests to other origins")
  func fairness() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { slow in
      try await withOrigin { _ in
        Reply(200, [], "hello")
      } _: { quick in
        let transport = directTransport { $0.maximumConnectionsPerOrigin = 2 }
        await withTaskGroup(of: Outcome.self) { group in
          for _ in 0..<20 { group.addTask { await transport.outcome(slow.url()) } }
          await gate.waitForArrivals(count: 2)
          for _ in 0..<20 { #expect(await transport.outcome(quick.url()) == .complete(200, "hello")) }
          #expect(slow.requestCount == 2)
          gate.open()
          for await outcome in group { #expect(outcome == .complete(200, "")) }
        }
      }
    }
  }

  @Test("Origins that do not respond, and use all connections, leave each other origin its share")
  func shares() async throws {
    let gate = Gate()
    let silent = try (0..<4).map { _ in try LoopbackOrigin { _ in Reply(200).held(at: gate) } }
    let quick = try LoopbackOrigin { Reply(200, [], $0.target) }
    defer { for origin in silent + [quick] { origin.stop() } }
    // The share is 2.
    let transport = directTransport {
      $0.maximumConnectionsPerOrigin = 16
      $0.maximumConnections = 32
    }
    await withTaskGroup(of: Outcome.self) { group in
      for origin in silent[..<2] {
        for _ in 0..<20 { group.addTask { await transport.outcome(origin.url()) } }
      }
      await gate.waitForArrivals(count: 32)
      for origin in silent[2...] {
        for _ in 0..<20 { group.addTask { await transport.outcome(origin.url()) } }
      }
      await gate.waitForArrivals(count: 36)
      #expect(silent.map(\.requestCount) == [16, 16, 2, 2])
      await withTaskGroup(of: Void.self) { callers in
        for caller in 0..<8 {
          callers.addTask {
            #expect(await transport.outcome(quick.url("/\(caller)")) == .complete(200, "/\(caller)"))
          }
        }
      }
      #expect(quick.connectionCount <= 2)
      gate.open()
      for await outcome in group { #expect(outcome == .complete(200, "")) }
    }
  }

  @Test("Responses that wait for their readers do not delay other requests to the origin")
  func slowReaders() async throws {
    let gate = Gate()
    let handler: LoopbackOrigin.Handler = { request in
      switch request.path {
      case "/endless": .endless()
      case "/held": Reply(200).held(at: gate)
      default: Reply(200, [], "hello")
      }
    }
    try await withOrigin(handler) { origin in
      let transport = directTransport {
        $0.maximumConnectionsPerOrigin = 2
        $0.maximumConnections = 4
      }
      var responses: [IncomingResponse] = []
      for _ in 0..<8 { responses.append(try await transport.get(origin.url("/endless"))) }
      #expect(await transport.outcome(origin.url()) == .complete(200, "hello"))

      // A reader does not wait for a place at the origin when it goes on.
      let held = [
        Task { await transport.outcome(origin.url("/held")) }, Task { await transport.outcome(origin.url("/held")) },
      ]
      await gate.waitForArrivals(count: 2)
      for response in responses {
        var received = 0
        for try await piece in response.body {
          received += piece.count
          if received > 1 << 20 { break }
        }
      }
      gate.open()
      for task in held { #expect(await task.value == .complete(200, "")) }
      responses = []
      #expect(await origin.waitForAbandonedReplies(count: 8))
    }
  }

  @Test("Responses that are released while they wait for their readers, or later, leave the limits as they were")
  func releasedReaders() async throws {
    let gate = Gate()
    try await withOrigin {
      $0.path == "/endless" ? .endless() : Reply(200).held(at: gate)
    } _: { origin in
      let transport = directTransport { $0.maximumConnectionsPerOrigin = 2 }
      for round in 0..<20 {
        let responses = [
          try await transport.get(origin.url("/endless")), try await transport.get(origin.url("/endless")),
          try await transport.get(origin.url("/endless")),
        ]
        for response in responses[..<(round % 3)] {
          var iterator = response.body.makeAsyncIterator()
          for _ in 0..<round { _ = try await iterator.next() }
        }
      }
      await withTaskGroup(of: Outcome.self) { group in
        for _ in 0..<5 { group.addTask { await transport.outcome(origin.url("/held")) } }
        await gate.waitForArrivals(count: 2)
        #expect(origin.requests.count { $0.path == "/held" } == 2)
        gate.open()
        for await outcome in group { #expect(outcome == .complete(200, "")) }
      }
    }
  }

  @Test("Connections use at most half of the process's descriptors, and further requests wait")
  func ceiling() async throws {
    try await withOrigin {
      $0.path == "/endless" ? .endless() : Reply(200, [], "hello")
    } _: { origin in
      let (endless, other) = (origin.url("/endless").absoluteString, origin.url("/").absoluteString)
      await #expect(processExitsWith: .success) { [endless = endless as String, other = other as String] in
        let limit = try limitDescriptors()
        let transport = directTransport { $0.maximumConnections = 1 }
        let url = try #require(URL(string: endless))
        let next = try #require(URL(string: other))
        var responses: [IncomingResponse] = []
        for _ in 0..<(limit / 2) { responses.append(try await transport.get(url)) }
        #expect(await transport.outcome(next, timeLimit: .milliseconds(200)) == .failure(.timedOut))
        responses.removeLast()
        #expect(await transport.outcome(next) == .complete(200, "hello"))
      }
    }
  }

  @Test("Requests at once that need more connections than the process has descriptors wait, and all get responses")
  func moreRequestsThanDescriptors() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200, [], "hello").held(at: gate)
    } _: { origin in
      // All connections that the limit permits are used at once.
      let opening = Task {
        await gate.waitForArrivals(count: 20)
        gate.open()
      }
      await #expect(processExitsWith: .success) { [address = origin.url().absoluteString as String] in
        let url = try #require(URL(string: address))
        _ = try limitDescriptors()
        let transport = directTransport()
        await withTaskGroup(of: Outcome.self) { group in
          for _ in 0..<200 { group.addTask { await transport.outcome(url) } }
          for await outcome in group { #expect(outcome == .complete(200, "hello")) }
        }
      }
      await opening.value
    }
  }

  @Test(
    "Idle connections are closed for new ones when the process has no descriptor left",
    arguments: [(1, true), (1, false), (8, true), (8, false)])
  func idleConnections(taskCount: Int, hasOneTransport: Bool) async throws {
    let origins = try (0..<30).map { _ in try LoopbackOrigin { Reply(200, [], $0.target) } }
    defer { for origin in origins { origin.stop() } }
    await #expect(processExitsWith: .success) {
      [
        addresses = origins.map { $0.url("/a").absoluteString } as [String], taskCount = taskCount as Int,
        hasOneTransport = hasOneTransport as Bool
      ] in
      let urls = try addresses.map { try #require(URL(string: $0)) }
      let transports = (0..<2).map { _ in directTransport() }
      // The thread and its descriptors exist from here on.
      for transport in transports { #expect(await transport.outcome(urls[0]) == .complete(200, "/a")) }
      _ = try limitDescriptors()
      let others = try useDescriptors(leaving: 12)
      await withTaskGroup(of: Void.self) { group in
        for first in 0..<taskCount {
          group.addTask {
            for (index, url) in urls.enumerated() where index % taskCount == first {
              let transport = transports[hasOneTransport || index < 15 ? 0 : 1]
              #expect(await transport.outcome(url, method: "POST") == .complete(200, "/a"))
            }
          }
        }
      }
      for descriptor in others { close(descriptor) }
    }
  }

  @Test("Idle connections of one transport are closed for a request of another when no descriptor is left")
  func idleConnectionsOfAnotherTransport() async throws {
    let origins = try (0..<4).map { _ in
      try LoopbackOrigin { request in
        request.path == "/last"
          ? Reply(200, [("Connection", "close")], "last").closing() : Reply(200, [], request.target)
      }
    }
    defer { for origin in origins { origin.stop() } }
    await #expect(processExitsWith: .success) {
      [
        addresses = origins.map { $0.url("/a").absoluteString } as [String],
        lastAddress = origins[0].url("/last").absoluteString as String
      ] in
      let urls = try addresses.map { try #require(URL(string: $0)) }
      let last = try #require(URL(string: lastAddress))
      let (idle, other) = (directTransport(), directTransport())
      // The thread and its descriptors exist from here on, and no connection of the other transport.
      #expect(await other.outcome(last) == .complete(200, "last"))
      for url in urls { #expect(await idle.outcome(url) == .complete(200, "/a")) }
      _ = try limitDescriptors()
      let descriptors = try useDescriptors(leaving: 0)
      #expect(await other.outcome(urls[0], method: "POST", timeLimit: .seconds(5)) == .complete(200, "/a"))
      for descriptor in descriptors { close(descriptor) }
    }
  }

  @Test(
    "A request for which the process has no descriptor left waits, within its time limit, and fails with that reason")
  func noDescriptor() async throws {
    try await withOrigin { _ in
      Reply(200, [("Connection", "close")], "hello").closing()
    } _: { origin in
      await #expect(processExitsWith: .success) { [address = origin.url().absoluteString as String] in
        let url = try #require(URL(string: address))
        let transport = directTransport()
        // The thread and its descriptors exist from here on. The connection is closed.
        #expect(await transport.outcome(url) == .complete(200, "hello"))
        _ = try limitDescriptors()
        let descriptors = try useDescriptors(leaving: 0)
        #expect(
          await transport.outcome(url, method: "POST", timeLimit: .milliseconds(300)) == .failure(.unavailable))
        let waiting = Task { await transport.outcome(url, method: "POST") }
        #expect(await transport.outcome(url, timeLimit: .milliseconds(300)) == .failure(.unavailable))
        for descriptor in descriptors { close(descriptor) }
        #expect(await waiting.value == .complete(200, "hello"))
      }
    }
  }
}

/// Opens descriptors until no more than this number can be opened.
private func useDescriptors(leaving count: Int) throws -> [CInt] {
  var descriptors: [CInt] = []
  while case let descriptor = dup(0), descriptor >= 0 { descriptors.append(descriptor) }
  try #require(descriptors.count >= count)
  for _ in 0..<count { close(descriptors.removeLast()) }
  return descriptors
}

/// Limits the process's descriptors so that half of the limit is enough for those that are open.
private func limitDescriptors() throws -> Int {
  // The process may have inherited some.
  let openCount = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").count
  let count = 2 * (openCount + 20)
  var limit = rlimit(rlim_cur: rlim_t(count), rlim_max: rlim_t(count))
  try #require(setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
  return count
}
