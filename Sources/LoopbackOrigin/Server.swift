import FoundationEssentials
import Glibc
import Synchronization

/// The state that the threads of an origin share. It outlives the `LoopbackOrigin` until its threads have ended.
final class Server: Sendable {
  private struct State {
    var handler: LoopbackOrigin.Handler
    var requestCount = 0
    var requests: [RecordedRequest] = []
    var isStopping = false
    /// The connections whose threads are running.
    var sockets: [Int: StreamSocket] = [:]
    /// The threads that serve a connection now. Each adds and removes itself.
    var servingThreads: Set<pthread_t> = []
    /// The threads that are not joined yet.
    var threads: [Int: OriginThread] = [:]
    /// The numbers of `threads` that have finished.
    var finished: [Int] = []
  }

  let port: UInt16
  let requestMilestone = Milestone()
  let connectionMilestone = Milestone()
  let abandonedMilestone = Milestone()
  private let recordsRequests: Bool
  private let listener: CInt
  private let state: Mutex<State>
  private let acceptThread = Mutex<OriginThread?>(nil)

  init(port: UInt16, recordsRequests: Bool, handler: @escaping LoopbackOrigin.Handler) throws(OriginError) {
    (listener, self.port) = try listen(port: port)
    self.recordsRequests = recordsRequests
    state = Mutex(State(handler: handler))
    let thread: OriginThread
    do {
      thread = try OriginThread { [self] in acceptConnections() }
    } catch {
      close(listener)
      throw error
    }
    acceptThread.withLock { $0 = thread }
  }

  var requests: [RecordedRequest] { state.withLock { $0.requests } }

  func setHandler(_ handler: @escaping LoopbackOrigin.Handler) {
    state.withLock { $0.handler = handler }
  }

  // MARK: Accepting

  private func acceptConnections() {
    while true {
      let descriptor = accept(listener, nil, nil)
      let failure = errno
      joinFinished()
      if state.withLock(\.isStopping) {
        if descriptor >= 0 { close(descriptor) }
        return
      }
      guard descriptor >= 0 else {
        // The client disconnected at once, or there is no free descriptor. The next connection may succeed.
        if failure == EMFILE || failure == ENFILE { sched_yield() }
        continue
      }
      // accept4 is not in Swift's Glibc module.
      _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
      let number = connectionMilestone.count
      connectionMilestone.advance()
      serve(descriptor, as: number)
    }
  }

  private func serve(_ descriptor: CInt, as number: Int) {
    do {
      let socket = try StreamSocket(descriptor: descriptor)
      state.withLock { $0.sockets[number] = socket }
      let thread = try OriginThread { [self] in
        state.withLock { _ = $0.servingThreads.insert(pthread_self()) }
        serveRequests(on: socket, connection: number)
        state.withLock { state in
          state.servingThreads.remove(pthread_self())
          state.sockets[number] = nil
          state.finished.append(number)
        }
      }
      state.withLock { $0.threads[number] = thread }
    } catch {
      // There is no descriptor or thread left. Refuse this client and continue with the others.
      state.withLock { $0.sockets[number] = nil }
      close(descriptor)
    }
  }

  private func joinFinished() {
    // A thread can finish before its handle is stored. The accepting thread stores it before it calls this again.
    let threads = state.withLock { state in
      let threads = state.finished.compactMap { state.threads.removeValue(forKey: $0) }
      state.finished = []
      return threads
    }
    for thread in threads { thread.join() }
  }

  // MARK: Replying

  /// Reads requests and sends replies until the connection ends.
  private func serveRequests(on socket: StreamSocket, connection: Int) {
    var isReplying = false
    do {
      var reader = RequestReader(socket: socket)
      var goesOn = true
      while goesOn, let message = try reader.next() {
        let (request, handler) = record(message, connection)
        requestMilestone.advance()
        isReplying = true
        goesOn = try send(handler(request), to: request, on: socket)
        isReplying = false
      }
      socket.finish()
    } catch ConnectionEnd.malformed(let reason) {
      // If the client is gone, it needs no reply. The connection ends in any case.
      _ = try? send(Reply(400, [], reason).closing(), to: nil, on: socket)
      socket.finish()
    } catch ConnectionEnd.clientLeft {
      socket.finish()
      if isReplying { abandonedMilestone.advance() }
    } catch {
      socket.finish()
    }
  }

  private func record(
    _ message: RequestReader.Message, _ connection: Int
  ) -> (RecordedRequest, LoopbackOrigin.Handler) {
    state.withLock { state in
      let request = RecordedRequest(
        number: state.requestCount, connection: connection, method: message.method, target: message.target,
        version: message.version, headerLines: message.headerLines, body: message.body)
      state.requestCount += 1
      if recordsRequests { state.requests.append(request) }
      return (request, state.handler)
    }
  }

  /// Sends the reply. Returns whether the connection stays open.
  private func send(
    _ reply: Reply, to request: RecordedRequest?, on socket: StreamSocket
  ) throws(ConnectionEnd) -> Bool {
    let script = reply.wireScript(for: request?.method ?? "GET")
    for part in script.parts {
      switch part {
      case .bytes(let bytes):
        try socket.write(bytes)
      case .hold(let gate):
        try socket.wait(at: gate)
      case .endless(let bytes):
        while true { try socket.write(bytes) }
      case .close:
        throw .scripted
      case .reset:
        socket.finish(reset: true)
        throw .scripted
      case .brokenChunk:
        try socket.write(Data("zz\r\n".utf8))
      }
    }
    if script.closes || request?.version == "HTTP/1.0" { return false }
    return request?["Connection"]?.lowercased() != "close"
  }

  // MARK: Stopping

  func stop() {
    let isFirst = state.withLock { state in
      precondition(
        !state.servingThreads.contains(pthread_self()),
        "LoopbackOrigin.stop() was called from a handler, or the handler held the origin's last reference")
      if state.isStopping { return false }
      state.isStopping = true
      return true
    }
    // A concurrent second call waits here until the first one is finished.
    acceptThread.withLock { thread in
      guard isFirst else { return }
      // This ends the call of accept that is waiting.
      shutdown(listener, CInt(SHUT_RDWR))
      thread?.join()
      close(listener)
      let (sockets, threads) = state.withLock { (Array($0.sockets.values), Array($0.threads.values)) }
      for socket in sockets { socket.abort() }
      for thread in threads { thread.join() }
      state.withLock { $0.threads = [:] }
    }
    for milestone in [requestMilestone, connectionMilestone, abandonedMilestone] { milestone.close() }
  }
}

/// Opens a listening socket on 127.0.0.1, and returns it with its port.
private func listen(port: UInt16) throws(OriginError) -> (CInt, UInt16) {
  let type = CInt(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
  let descriptor = socket(AF_INET, type, 0)
  guard descriptor >= 0 else { throw OriginError(function: "socket", number: errno) }
  var enabled: CInt = 1
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &enabled, socklen_t(MemoryLayout<CInt>.size))
  var address = sockaddr_in()
  address.sin_family = sa_family_t(AF_INET)
  address.sin_port = port.bigEndian
  address.sin_addr = in_addr(s_addr: INADDR_LOOPBACK.bigEndian)
  var length = socklen_t(MemoryLayout<sockaddr_in>.size)
  let failed: String? = withUnsafeMutablePointer(to: &address) { pointer in
    pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
      if bind(descriptor, pointer, length) != 0 { return "bind" }
      if Glibc.listen(descriptor, 1024) != 0 { return "listen" }
      return getsockname(descriptor, pointer, &length) != 0 ? "getsockname" : nil
    }
  }
  if let failed {
    let error = OriginError(function: failed, number: errno)
    close(descriptor)
    throw error
  }
  return (descriptor, UInt16(bigEndian: address.sin_port))
}
