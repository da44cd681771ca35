import CSlowNames
import CurlTransport
import Foundation
import Glibc
import LoopbackOrigin
import Synchronization
import Testing

/// Hosts with several addresses, which the process's lookups return instead of asking a name server.
private enum KnownHosts {
  private static let addresses = Mutex<[String: String]>([:])

  /// Returns a new host with these addresses, which are tried in this order.
  static func host(_ list: [String]) -> String {
    slow_names_install_addresses { host, buffer, size in
      guard let host, let buffer, let list = KnownHosts.list(String(cString: host)) else { return 0 }
      let bytes = list.utf8CString
      precondition(bytes.count <= size)
      for (index, byte) in bytes.enumerated() { buffer[index] = byte }
      return 1
    }
    return addresses.withLock { addresses in
      let host = "addresses-\(addresses.count).invalid"
      addresses[host] = list.joined(separator: ",")
      return host
    }
  }

  private static func list(_ host: String) -> String? { addresses.withLock { $0[host] } }
}

/// Tests of origins with several addresses. The origin listens on 127.0.0.1 only.
@Suite("Addresses of an origin", .timeLimit(.minutes(1)))
struct AddressTests {
  private func outcome(
    _ addresses: [String], _ port: UInt16, _ configure: (inout CurlTransport.Configuration) -> Void = { _ in }
  ) async -> Outcome {
    let url = URL(string: "http://\(KnownHosts.host(addresses)):\(port)/")!
    return await directTransport(configure).outcome(url)
  }

  @Test(
    "A request uses the next address if others refuse the connection",
    arguments: [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.1"]])
  func refusing(_ addresses: [String]) async throws {
    try await withOrigin { _ in
      Reply(200, [], "hello")
    } _: { origin in
      // Shorter than the time for which some versions of libcurl wait after the second refusal.
      let outcome = await outcome(addresses, origin.port) { $0.connectTimeout = .seconds(3) }
      #expect(outcome == .complete(200, "hello"))
    }
  }

  @Test("A request uses the next address if the first is silent")
  func silent() async throws {
    try await withOrigin { _ in
      Reply(200, [], "hello")
    } _: { origin in
      let silent = try SilentListener(host: "127.0.0.2", port: origin.port, isFull: true)
      let outcome = await outcome(["127.0.0.2", "127.0.0.1"], origin.port) { $0.connectTimeout = .seconds(4) }
      #expect(outcome == .complete(200, "hello"))
      withExtendedLifetime(silent) {}
    }
  }

  @Test(
    "A request uses an IPv4 address if the IPv6 address refuses the connection or is silent",
    .enabled(if: SocketAddress.isAvailable("::1")), arguments: [false, true])
  func otherFamily(_ isSilent: Bool) async throws {
    try await withOrigin { _ in
      Reply(200, [], "hello")
    } _: { origin in
      let silent = isSilent ? try SilentListener(host: "::1", port: origin.port, isFull: true) : nil
      #expect(await outcome(["::1", "127.0.0.1"], origin.port) == .complete(200, "hello"))
      withExtendedLifetime(silent) {}
    }
  }

  @Test("A request fails if all addresses refuse the connection, and times out if all are silent")
  func none() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      #expect(await outcome(["127.0.0.2", "127.0.0.3"], origin.port) == .failure(.cannotConnect))
      let silent = try ["127.0.0.2", "127.0.0.3"].map {
        try SilentListener(host: $0, port: origin.port, isFull: true)
      }
      let outcome = await outcome(["127.0.0.2", "127.0.0.3"], origin.port) { $0.connectTimeout = .milliseconds(500) }
      #expect(outcome == .failure(.timedOut))
      #expect(origin.requestCount == 0)
      withExtendedLifetime(silent) {}
    }
  }

  @Test("Requests to an origin with several addresses share a connection")
  func reuse() async throws {
    try await withOrigin { _ in
      Reply(200, [], "hello")
    } _: { origin in
      let url = URL(string: "http://\(KnownHosts.host(["127.0.0.2", "127.0.0.1"])):\(origin.port)/")!
      let transport = directTransport()
      for _ in 0..<10 { #expect(await transport.outcome(url) == .complete(200, "hello")) }
      #expect(origin.connectionCount == 1)
    }
  }
}
