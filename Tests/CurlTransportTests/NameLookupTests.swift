import CSlowNames
import CachingClient
import CurlTransport
import Dispatch
import Foundation
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

/// A simulated name server that does not respond for one host until a test permits it.
private enum SilentNameServer {
  static let host = "silent.invalid"
  private static let isSilent = Atomic(true)
  private static let turnstile = DispatchSemaphore(value: 0)
  private static let heldCount = Atomic(0)

  static func install() {
    slow_names_install { host in
      guard let host, String(cString: host) == SilentNameServer.host else { return }
      SilentNameServer.pass()
    }
  }

  private static func pass() {
    guard isSilent.load(ordering: .sequentiallyConsistent) else { return }
    heldCount.add(1, ordering: .sequentiallyConsistent)
    turnstile.wait()
    turnstile.signal()
  }

  static func answer() {
    isSilent.store(false, ordering: .sequentiallyConsistent)
    turnstile.signal()
  }

  static var lookupCount: Int { heldCount.load(ordering: .sequentiallyConsistent) }
}

@Suite("Host name lookup", .timeLimit(.minutes(1)))
struct NameLookupTests {
  @Test("A request for an unknown host fails", arguments: ["missing.invalid", "xn--bcher-kva.invalid"])
  func unknown(_ host: String) async {
    #expect(await directTransport().outcome(url(host)) == .failure(.cannotFindHost))
  }

  private func url(_ host: String) -> URL { URL(string: "http://\(host)/")! }

  // Runs in its own process, where no other test looks up names.
  @Test("A silent name server delays neither cancellation, nor timeouts, nor other requests")
  func silent() async {
    await #expect(processExitsWith: .success) { try await Self.loadDuringSilentLookup() }
  }

  @Test("A process can exit while a name server is silent")
  func exitDuringLookup() async {
    await #expect(processExitsWith: .success) {
      SilentNameServer.install()
      let request = OutgoingRequest(head: RequestHead(url: URL(string: "http://\(SilentNameServer.host)/")!))
      let transport = directTransport()
      let task = Task { try await transport.send(request) }
      while SilentNameServer.lookupCount == 0 { await Task.yield() }
      withExtendedLifetime(task) { exit(0) }
    }
  }

  private static func loadDuringSilentLookup() async throws {
    SilentNameServer.install()
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hello") }
    let transport = directTransport { $0.connectTimeout = .seconds(1) }
    let silent = OutgoingRequest(head: RequestHead(url: URL(string: "http://\(SilentNameServer.host)/")!))

    let cancelled = Task { try await transport.send(silent) }
    while SilentNameServer.lookupCount == 0 { await Task.yield() }
    cancelled.cancel()
    // The cancelled request must end although the name server does not respond.
    await #expect(throws: CancellationError.self) { _ = try await cancelled.value }
    #expect(await transport.outcome(origin.url("/a")) == .complete(200, "hello"))

    await #expect {
      _ = try await transport.send(silent)
    } throws: {
      ($0 as? CurlTransportError)?.code == .timedOut
    }
    #expect(await transport.outcome(origin.url("/b")) == .complete(200, "hello"))

    do {
      let released = directTransport()
      let count = SilentNameServer.lookupCount
      let cancelled = Task { try await released.send(silent) }
      while SilentNameServer.lookupCount == count { await Task.yield() }
      cancelled.cancel()
      await #expect(throws: CancellationError.self) { _ = try await cancelled.value }
    }
    // The release of a transport must not wait for its lookups.
    #expect(await transport.outcome(origin.url("/c")) == .complete(200, "hello"))
    SilentNameServer.answer()
    origin.stop()
  }
}
