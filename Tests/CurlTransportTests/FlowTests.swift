import CacheModel
import CachingClient
import Foundation
import Glibc
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

// One transfer, step by step, with a clock of its own.
@testable import CurlTransport

/// Tests of slow readers, slow servers, cancellation and timeouts.
@Suite("Flow control of the curl transport", .timeLimit(.minutes(1)))
struct FlowTests {
  /// The maximum number of unread bytes: the pause limit and libcurl's last piece.
  private static let maximumUnreadByteCount = Exchange.pausingByteCount + (16 << 10)

  /// Returns a transfer with a time limit of 60 seconds, which does not start.
  private func transfer(
    _ head: RequestHead, content: Data? = nil, over connections: ConnectionPoolHandle
  ) throws -> Transfer {
    let request = OutgoingRequest(head: head, body: content.map { .bytes($0) })
    return Transfer(
      try PreparedRequest(request, decodesContent: false), in: connections.pool, timeout: .seconds(60))
  }

  /// Starts a request like `send`, and returns the exchange too, so that tests can inspect it.
  private func start(
    _ url: URL, over connections: ConnectionPoolHandle
  ) async throws -> (exchange: Exchange, content: Data?, reader: ResponseReader) {
    let transfer = try transfer(RequestHead(url: url), over: connections)
    let arrival = try await transfer.exchange.arrival { connections.post(.start(transfer)) }
    let reader = ResponseReader(transfer, over: connections, decoder: nil, received: Data())
    return (transfer.exchange, arrival.wholeContent, reader)
  }

  private func openConnections() throws -> ConnectionPoolHandle {
    var configuration = CurlTransport.Configuration()
    configuration.proxy = .none
    return try ConnectionPoolHandle(configuration)
  }

  /// Runs `body` with an I/O thread whose time the test moves, so that no limit depends on the speed of this machine.
  private func withSkippingClock(
    _ body: (SkippingClock, IOThread, ConnectionPoolHandle) async throws -> Void
  ) async throws {
    let clock = SkippingClock()
    let thread = try IOThread(clock: LoopClock { clock.now })
    let end = Task {
      await withCheckedContinuation { continuation in
        Thread.detachNewThread {
          thread.run()
          continuation.resume()
        }
      }
    }
    do {
      var configuration = CurlTransport.Configuration()
      configuration.proxy = .none
      try await body(clock, thread, ConnectionPoolHandle(configuration, on: thread))
    }
    thread.post(.stop)
    await end.value
  }

  /// Wakes the I/O thread, which then checks the time limits.
  private func wake(_ thread: IOThread, _ connections: ConnectionPoolHandle) throws {
    thread.post(.cancel(try transfer(RequestHead(url: URL(string: "http://127.0.0.1/")!), over: connections)))
  }

  @Test("A slow reader pauses the transfer, and the number of unread bytes stays bounded")
  func backPressure() async throws {
    let byteCount = 24 << 20
    try await withOrigin { _ in
      Reply(200, [], body: Data(repeating: 120, count: byteCount))
    } _: { origin in
      let (exchange, _, reader) = try await start(origin.url(), over: try openConnections())
      var received = 0
      var pauseCount = 0
      while received < byteCount {
        // Wait until the transfer has paused or all bytes have arrived.
        while !exchange.isPaused, received + exchange.unreadByteCount < byteCount { await Task.yield() }
        #expect(exchange.unreadByteCount <= Self.maximumUnreadByteCount)
        if exchange.isPaused { pauseCount += 1 }
        received += try #require(try await reader.next()).count
      }
      #expect(received == byteCount)
      #expect(try await reader.next() == nil)
      #expect(pauseCount >= byteCount / Self.maximumUnreadByteCount - 1)
    }
  }

  @Test("A paused transfer does not delay other transfers")
  func neighbors() async throws {
    let handler: LoopbackOrigin.Handler = { $0.path == "/endless" ? .endless() : Reply(200, [], "hello") }
    try await withOrigin(handler) { origin in
      let connections = try openConnections()
      let (exchange, _, reader) = try await start(origin.url("/endless"), over: connections)
      await wait { exchange.isPaused }
      for _ in 0..<50 {
        let (_, content, neighbor) = try await start(origin.url("/a"), over: connections)
        var text = content ?? Data()
        while let piece = try await neighbor.next() { text += piece }
        #expect(text == Data("hello".utf8))
      }
      #expect(try await reader.next()?.isEmpty == false)
    }
  }

  @Test("A large body arrives completely and in order")
  func largeBody() async throws {
    var content = Data()
    for number in 0..<(1 << 18) { withUnsafeBytes(of: UInt64(number)) { content.append(contentsOf: $0) } }
    try await withOrigin { [content] _ in
      Reply(200, [], body: content).chunked(byteCount: 1000)
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(try await response.data() == content)
    }
  }

  @Test("Releasing an unread response ends its transfer")
  func abandonedReader() async throws {
    try await withOrigin { _ in
      .endless()
    } _: { origin in
      let transport = directTransport()
      var response: IncomingResponse? = try await transport.get(origin.url())
      #expect(response?.head.status == 200)
      response = nil
      #expect(await origin.waitForAbandonedReplies())
    }
  }

  @Test("Cancellation ends a request that waits for its response head")
  func cancelWaiting() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { origin in
      let transport = directTransport()
      let task = Task { try await transport.get(origin.url()) }
      await gate.waitForArrivals()
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
      #expect(await origin.waitForAbandonedReplies())
    }
  }

  @Test("Cancellation ends a response that is being read")
  func cancelReading() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200, [], "hello").held(at: gate, afterBodyBytes: 2)
    } _: { origin in
      let transport = directTransport()
      let task = Task { try await transport.get(origin.url()).text() }
      await gate.waitForArrivals()
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
      #expect(await origin.waitForAbandonedReplies())
    }
  }

  @Test("Cancellation ends a queued request, and the next request gets the connection")
  func cancelQueued() async throws {
    let gate = Gate()
    try await withOrigin {
      $0.path == "/held" ? Reply(200).held(at: gate) : Reply(200, [], "hello")
    } _: { origin in
      let transport = directTransport { $0.maximumConnectionsPerOrigin = 1 }
      let holder = Task { await transport.outcome(origin.url("/held")) }
      await gate.waitForArrivals()
      let cancelled = (0..<100).map { number in Task { try await transport.get(origin.url("/\(number)")) } }
      for task in cancelled { task.cancel() }
      for task in cancelled { await #expect(throws: CancellationError.self) { try await task.value } }
      let last = Task { await transport.outcome(origin.url("/last")) }
      gate.open()
      #expect(await holder.value == .complete(200, ""))
      #expect(await last.value == .complete(200, "hello"))
      #expect(origin.requests.map(\.path) == ["/held", "/last"])
    }
  }

  @Test("A task that is already cancelled sends nothing")
  func cancelledBefore() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport()
      let task = Task {
        withUnsafeCurrentTask { $0?.cancel() }
        return try await transport.get(origin.url())
      }
      await #expect(throws: CancellationError.self) { try await task.value }
      #expect(origin.requestCount == 0)
    }
  }

  @Test("Requests cancelled at any time leak neither sockets nor connection slots")
  func cancelMany() async throws {
    try await withOrigin { _ in
      Reply(200, [], String(repeating: "a", count: 20_000))
    } _: { origin in
      let transport = directTransport { $0.maximumConnectionsPerOrigin = 4 }
      _ = try await transport.get(origin.url())
      for round in 0..<20 {
        let tasks = (0..<20).map { _ in Task { try await transport.get(origin.url()).data() } }
        for (number, task) in tasks.enumerated() where (number + round) % 3 != 0 {
          if number % 2 == 0 { await Task.yield() }
          task.cancel()
        }
        for task in tasks {
          // Requests that were cancelled too late have a complete response.
          if case .success(let data) = await task.result { #expect(data.count == 20_000) }
        }
      }
      #expect(await transport.outcome(origin.url()) == .complete(200, String(repeating: "a", count: 20_000)))
      #expect(try openSocketCount(to: origin.port) <= 4)
    }
  }

  @Test("A request to a server that never responds times out")
  func silentServer() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { origin in
      // Long enough for the origin to get the request on a busy machine.
      let outcome = await directTransport().outcome(origin.url(), timeLimit: .milliseconds(500))
      #expect(outcome == .failure(.timedOut))
      #expect(await origin.waitForAbandonedReplies())
    }
  }

  @Test("Reading a stalled body times out")
  func silentBody() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200, [], "hello").held(at: gate, afterBodyBytes: 2)
    } _: { origin in
      let outcome = await directTransport { $0.timeout = .milliseconds(100) }.outcome(origin.url())
      #expect(outcome == .failure(.timedOut))
    }
  }

  @Test("A request that gets no connection times out")
  func silentQueue() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { origin in
      let transport = directTransport { $0.maximumConnectionsPerOrigin = 1 }
      let holder = Task { await transport.outcome(origin.url()) }
      await gate.waitForArrivals()
      #expect(await transport.outcome(origin.url(), timeLimit: .milliseconds(50)) == .failure(.timedOut))
      gate.open()
      #expect(await holder.value == .complete(200, ""))
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A reader that takes longer than the time limit loses nothing")
  func slowReader() async throws {
    let gate = Gate()
    try await withOrigin {
      $0.path == "/silent" ? Reply(200).held(at: gate) : Reply(200, [], body: Data(repeating: 120, count: 8 << 20))
    } _: { origin in
      try await withSkippingClock { clock, thread, connections in
        let (exchange, _, reader) = try await start(origin.url("/"), over: connections)
        await wait { exchange.isPaused }
        let silent = try transfer(RequestHead(url: origin.url("/silent")), over: connections)
        let failure = Task { try await silent.exchange.arrival { connections.post(.start(silent)) } }
        await gate.waitForArrivals()

        clock.skip(.seconds(100))
        try wake(thread, connections)
        let error = await #expect(throws: CurlTransportError.self) { try await failure.value }
        #expect(error?.code == .timedOut)
        var received = 0
        while let piece = try await reader.next() { received += piece.count }
        #expect(received == 8 << 20)
      }
    }
  }

  @Test("The time limit of a request with content counts from the sending, not from the first check after it")
  func silentServerAfterContent() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200).held(at: gate)
    } _: { origin in
      try await withSkippingClock { clock, thread, connections in
        let head = RequestHead(method: "POST", url: origin.url())
        let silent = try transfer(head, content: Data("hello".utf8), over: connections)
        let failure = Task { try await silent.exchange.arrival { connections.post(.start(silent)) } }
        await gate.waitForArrivals()
        clock.skip(.seconds(61))
        try wake(thread, connections)
        let error = await #expect(throws: CurlTransportError.self) { try await failure.value }
        #expect(error?.code == .timedOut)
      }
    }
  }

  @Test("Content that takes longer than the time limit is sent, because each part restarts the time")
  func slowServer() async throws {
    let server = try SilentListener()
    // More than the buffers of the connection hold.
    let partByteCount = 16 << 20
    try await withSkippingClock { clock, thread, connections in
      let head = RequestHead(method: "POST", url: server.url())
      let slow = try transfer(head, content: Data(count: 2 * partByteCount), over: connections)
      let arrival = Task { try await slow.exchange.arrival { connections.post(.start(slow)) } }
      let connection = await server.accept()
      for _ in 0..<2 {
        clock.skip(.seconds(40))
        try wake(thread, connections)
        await connection.receive(partByteCount)
      }
      connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
      #expect(try await arrival.value.head.status == 200)
      withExtendedLifetime(connection) {}
    }
  }

  @Test("A request times out if its connection is not accepted in time")
  func silentAddress() async throws {
    let backlog = try SilentListener(isFull: true)
    let transport = directTransport { $0.connectTimeout = .milliseconds(100) }
    #expect(await transport.outcome(backlog.url()) == .failure(.timedOut))
    // Cancellation does not wait for the connection.
    let patient = directTransport()
    let task = Task { try await patient.get(backlog.url()) }
    await Task.yield()
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
  }

  @Test("Cancellation ends a request whose TLS handshake is not answered")
  func cancelHandshake() async throws {
    let silent = try SilentListener()
    let transport = directTransport()
    let url = silent.url("https")
    let task = Task { try await transport.get(url) }
    await silent.waitForBytes()
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
  }

  @Test("A connection that has reached the maximum age is not reused")
  func maximumAge() async throws {
    let origin = try LoopbackOrigin(recordsRequests: false) { _ in Reply(200) }
    defer { origin.stop() }
    let transport = directTransport { $0.maximumConnectionAge = .seconds(1) }
    // The test's time limit ends this loop if the connection is used forever.
    while origin.connectionCount < 2 { #expect(await transport.outcome(origin.url()) == .complete(200, "")) }
  }

  @Test("Several readers of one body do not disturb the first one", arguments: [true, false])
  func severalReaders(isEncoded: Bool) async throws {
    let text = String(repeating: "0123456789", count: 1 << 16)
    let reply =
      isEncoded ? Reply(200, [("Content-Encoding", "gzip")], body: encoded(text, .gzip)) : Reply(200, [], text)
    try await withOrigin { _ in
      reply
    } _: { origin in
      for _ in 0..<5 {
        let response = try await directTransport().get(origin.url())
        await withTaskGroup(of: Outcome.self) { group in
          for _ in 0..<3 {
            group.addTask {
              do { return .complete(200, try await response.text()) } catch { return .other("\(type(of: error))") }
            }
          }
          var outcomes: [Outcome] = []
          for await outcome in group { outcomes.append(outcome) }
          #expect(outcomes.count { $0 == .complete(200, text) } == 1)
          #expect(outcomes.count { $0 == .other("CachingClientError") } == 2)
        }
      }
    }
  }
}

/// A clock that is ahead of the monotonic clock.
private final class SkippingClock: Sendable {
  private let skipped = Mutex(Duration.zero)

  var now: MonotonicTime { .now.advanced(by: skipped.withLock { $0 }) }

  func skip(_ duration: Duration) {
    skipped.withLock { $0 += duration }
  }
}

/// Returns the number of this process's sockets that are connected to a local port.
func openSocketCount(to port: UInt16) throws -> Int {
  let descriptors = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").compactMap { CInt($0) }
  return descriptors.count { descriptor in
    var address = sockaddr_in()
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let isConnected = withUnsafeMutablePointer(to: &address) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { getpeername(descriptor, $0, &length) == 0 }
    }
    return isConnected && address.sin_family == AF_INET && UInt16(bigEndian: address.sin_port) == port
  }
}
