import FoundationEssentials
import Glibc
import HTTPCaching
import LoopbackOrigin
import Testing

@testable import CurlTransport

/// When the I/O thread runs, and what becomes of it.
@Suite("Lifecycle of curl's transport", .timeLimit(.minutes(1)))
struct LifecycleTests {
  @Test("The thread runs from the first request until the last transport and the last response are gone")
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
      // The response is still read.
      var iterator = response?.body.makeAsyncIterator()
      for _ in 0..<10 { #expect(try await iterator?.next()?.isEmpty == false) }
      response = nil
      iterator = nil
    }
    await wait { IOThread.runningCount == 0 }
    #expect(IOThread.runningCount == 0)
  }

  @Test("A transport whose last reference goes closes its connections")
  func connections() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      var transport: CurlTransport? = directTransport()
      _ = try await transport?.get(origin.url())
      #expect(openSocketCount(to: origin.port) == 1)
      transport = nil
      await wait { openSocketCount(to: origin.port) == 0 }
      #expect(openSocketCount(to: origin.port) == 0)
    }
  }

  @Test("A transport that is idle closes its connections, and opens others when it is used again")
  func idleConnections() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport { $0.idleConnectionTimeout = .milliseconds(20) }
      for round in 1...3 {
        #expect(await transport.outcome(origin.url()) == .complete(200, ""))
        await wait { openSocketCount(to: origin.port) == 0 }
        #expect(origin.connectionCount == round)
      }
    }
  }

  @Test("A process ends in peace while requests are under way")
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

  @Test("A forked child is refused, and its parent goes on")
  func fork() async {
    await #expect(processExitsWith: .success) {
      let origin = try LoopbackOrigin { _ in Reply(200, [], "hello") }
      let transport = directTransport()
      #expect(await transport.outcome(origin.url()) == .complete(200, "hello"))
      let child = Glibc.fork()
      if child == 0 {
        // Nothing but this thread lives on.
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
