import FoundationEssentials

/// An HTTP/1.1 origin on 127.0.0.1 with a scripted reply, down to the byte, for each request.
///
/// It accepts any number of connections, with one thread each, and keeps them open between requests. It replies to
/// pipelined requests in order, reads bodies sent with `Content-Length` or in chunks, and handles `Expect:
/// 100-continue`. It is for tests and demonstrations: it does not limit the memory that clients use, and records all
/// requests.
///
/// ```swift
/// let origin = try LoopbackOrigin { request in
///   request.path == "/a" ? Reply(200, [("Cache-Control", "max-age=60")], "a") : Reply(404)
/// }
/// defer { origin.stop() }
/// let (data, _) = try await URLSession.shared.data(from: origin.url("/a"))
/// ```
///
/// All members can be called from any thread. The origin stops when its last reference is released.
public final class LoopbackOrigin: Sendable {
  /// Returns the reply to a request. Called on the connection's thread: several connections call it concurrently.
  public typealias Handler = @Sendable (RecordedRequest) -> Reply

  /// The port that it listens on.
  public let port: UInt16

  private let server: Server

  /// Starts to listen and to reply to requests.
  ///
  /// - Parameters:
  ///   - port: The port; 0, the default, lets the system choose one. The port of a stopped origin can be reused at
  ///     once.
  ///   - recordsRequests: Whether `requests` is recorded; true by default. Requests are always counted.
  ///   - handler: Returns the reply to each request. If it retains the origin, the origin does not stop by itself.
  /// - Throws: `OriginError` if the port is in use, or the process has no descriptor or thread left.
  public init(port: UInt16 = 0, recordsRequests: Bool = true, handler: @escaping Handler) throws(OriginError) {
    server = try Server(port: port, recordsRequests: recordsRequests, handler: handler)
    self.port = server.port
  }

  /// Starts an origin that sends one reply after the other, and status 500 after the last one.
  ///
  /// - Throws: `OriginError`, like the other initializer.
  public convenience init(replies: [Reply]) throws(OriginError) {
    try self.init { request in
      request.number < replies.count
        ? replies[request.number] : Reply(500, [], "no reply left for request \(request.number)")
    }
  }

  deinit {
    server.stop()
  }

  /// Returns the URL of a target on this origin.
  ///
  /// - Parameter target: The path and query, starting with `/`, percent-encoded where necessary.
  public func url(_ target: String = "/") -> URL {
    guard target.hasPrefix("/"), let url = URL(string: "http://127.0.0.1:\(port)\(target)") else {
      preconditionFailure("a target starts with / and is percent-encoded; this is none: \(target)")
    }
    return url
  }

  /// All requests so far, in order of arrival.
  ///
  /// A request is recorded before its handler is called. Empty without recording.
  public var requests: [RecordedRequest] { server.requests }

  /// The number of requests so far.
  public var requestCount: Int { server.requestMilestone.count }

  /// The number of connections so far, including closed ones.
  public var connectionCount: Int { server.connectionMilestone.count }

  /// The number of replies during which the client closed or reset the connection.
  public var abandonedReplyCount: Int { server.abandonedMilestone.count }

  /// Waits until `count` requests have arrived since the start.
  ///
  /// - Returns: False if the task was cancelled or the origin stopped first.
  @discardableResult
  public func waitForRequests(count: Int) async -> Bool {
    await server.requestMilestone.wait(for: count)
  }

  /// Waits until `count` connections were made since the start.
  ///
  /// - Returns: False if the task was cancelled or the origin stopped first.
  @discardableResult
  public func waitForConnections(count: Int) async -> Bool {
    await server.connectionMilestone.wait(for: count)
  }

  /// Waits until clients have abandoned `count` replies.
  ///
  /// The origin notices this while writing, and while held at a gate.
  ///
  /// - Returns: False if the task was cancelled or the origin stopped first.
  @discardableResult
  public func waitForAbandonedReplies(count: Int = 1) async -> Bool {
    await server.abandonedMilestone.wait(for: count)
  }

  /// Uses another handler from the next request on.
  public func answer(with handler: @escaping Handler) {
    server.setHandler(handler)
  }

  /// Closes the port and all connections, including held replies, and waits for all threads.
  ///
  /// It also waits for running handlers, so a call from a handler traps. Later calls return at once.
  public func stop() {
    server.stop()
  }
}
