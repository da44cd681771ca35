import CurlTransport
import FoundationEssentials
import Glibc
import HTTPCaching
import LoopbackOrigin
import Testing

/// Tests of the I/O thread's lifetime, process exit and fork.
@Suite("Lifecycle of the curl transport", .timeLimit(.minutes(1)))
struct LifecycleTests {
  @Test("The I/O thread runs from the first request until the last transport and response are released")
  func thread() async throws {
    await wait { IOThread.runningCount == 0 }
    try await withOrigin { _ in
      .endless()
    } _: { origin in
      var transport: CurlTransport? = directTransport()
      #expect(IOThread.runningCount == 0)
      var response = try await transport?.get(origin.url())
      let other = directTransport()
      _ = try await other.get(origin.url())
      #expect(IOThread.runningCount == 1)
      transport = nil
      withExtendedLifetime(other) {}
      // The response can still be read.
      var iterator = response?.body.makeAsyncIterator()
      for _ in 0..<10 { #expect(try await iterator?.next()?.isEmpty == false) }
      response = nil
      iterator = nil
    }
    await wait { IOThread.runningCount == 0 }
    #expect(IOThread.runningCount == 0)
  }

  @Test("Releasing a transport closes its connections")
  func connections() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      var transport: CurlTransport? = directTransport()
      _ = try await transport?.get(origin.url())
      #expect(try openSocketCount(to: origin.port) == 1)
      transport = nil
      try await wait { try openSocketCount(to: origin.port) == 0 }
      #expect(try openSocketCount(to: origin.port) == 0)
    }
  }

  @Test("An idle transport closes its connections and opens new ones for later requests")
  func idleConnections() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport { $0.idleConnectionTimeout = .milliseconds(20) }
      for round in 1...3 {
        #expect(await transport.outcome(origin.url()) == .complete(200, ""))
        try await wait { try openSocketCount(to: origin.port) == 0 }
        #expect(origin.connectionCount == round)
      }
    }
  }

  @Test("A process can exit while requests are in flight")
  func exitDuringRequests() async {
    await #expect(processExitsWith: .success) {
      let gate = Gate()
      let origin = try LoopbackOrigin { $0.path == "/endless" ? .endless() : Reply(200).held(at: gate) }
      let transport = directTransport()
      let task = Task { try await transport.get(origin.url()) }
      let reading = Task { for try await _ in try await transport.get(origin.url("/endless")).body {} }
      await gate.waitForArrivals()
      withExtendedLifetime((task, reading)) { exit(0) }
    }
  }

  @Test("A forked child cannot create transports, and its parent is not affected")
  func fork() async {
    await #expect(processExitsWith: .success) {
      let origin = try LoopbackOrigin { _ in Reply(200, [], "hello") }
      let transport = directTransport()
      #expect(await transport.outcome(origin.url()) == .complete(200, "hello"))
      let child = Glibc.fork()
      if child == 0 {
        // Only this thread exists in the child.
        do throws(CurlTransportError) {
          _ = try ConnectionPoolHandle(CurlTransport.Configuration())
          _exit(1)
        } catch {
          exit(error.code == .unavailable ? 0 : 2)
        }
      }
      var status: CInt = -1
      #expect(waitpid(child, &status, 0) == child)
      #expect(status == 0)
      #expect(await transport.outcome(origin.url()) == .complete(200, "hello"))
    }
  }
}
