#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// An HTTP/1.1 origin on 127.0.0.1 whose answers are scripted request by request, down to the byte.
///
/// It takes any number of connections, one thread each, keeps them open between requests, answers pipelined requests in order, reads bodies sent with
/// `Content-Length` or in chunks, and answers `Expect: 100-continue` by itself. It is made for tests and demonstrations: it trusts its clients with
/// its memory, and records all that comes in.
///
/// ```swift
/// let origin = try LoopbackOrigin { request in
///   request.path == "/a" ? Reply(200, [("Cache-Control", "max-age=60")], "a") : Reply(404)
/// }
/// defer { origin.stop() }
/// let (data, _) = try await URLSession.shared.data(from: origin.url("/a"))
/// ```
///
/// All members may be called from any thread. The origin stops by itself when its last reference goes.
public final class LoopbackOrigin: Sendable {
  /// Answers one request. It runs on the thread of the request's connection, so for several connections at the same time.
  public typealias Handler = @Sendable (RecordedRequest) -> Reply

  /// The port it listens on.
  public let port: UInt16

  private let server: Server

  /// Starts to listen; requests are answered from here on.
  ///
  /// - Parameters:
  ///   - port: the port, or 0 (the default) to let the system choose one. A port that an origin has just left can be taken again at once.
  ///   - recordsRequests: whether `requests` is kept; true by default. Counts are kept always.
  ///   - handler: answers each request. A handler that holds the origin itself keeps it from stopping on its own.
  /// - Throws: `OriginError` when the port is taken, or the process has no descriptor or thread left.
  public init(port: UInt16 = 0, recordsRequests: Bool = true, handler: @escaping Handler) throws(OriginError) {
    server = try Server(port: port, recordsRequests: recordsRequests, handler: handler)
    self.port = server.port
  }

  /// Starts an origin that answers the first request with the first reply, and so on; when none is left, with status 500.
  ///
  /// - Throws: `OriginError` as the other initializer.
  public convenience init(replies: [Reply]) throws(OriginError) {
    try self.init { request in
      request.number < replies.count
        ? replies[request.number] : Reply(500, [], "no reply left for request \(request.number)")
    }
  }

  deinit {
    server.stop()
  }

  /// The URL of a target on this origin.
  ///
  /// - Parameter target: path and query, starting with `/`, percent-encoded where it must be.
  public func url(_ target: String = "/") -> URL {
    guard target.hasPrefix("/"), let url = URL(string: "http://127.0.0.1:\(port)\(target)") else {
      preconditionFailure("a target starts with / and is percent-encoded; this is none: \(target)")
    }
    return url
  }

  /// All requests so far, in order of arrival; each is here before its handler is asked. Empty if the origin does not record.
  public var requests: [RecordedRequest] { server.requests }

  /// How many requests have come in so far.
  public var requestCount: Int { server.requestMilestone.count }

  /// How many connections were made so far, those now closed included.
  public var connectionCount: Int { server.connectionMilestone.count }

  /// How many replies the client did not wait for the end of: it closed or reset the connection first.
  public var abandonedReplyCount: Int { server.abandonedMilestone.count }

  /// Waits until `count` requests have come in since the start.
  ///
  /// - Returns: false if the task was cancelled or the origin stopped before.
  @discardableResult
  public func waitForRequests(count: Int) async -> Bool {
    await server.requestMilestone.wait(for: count)
  }

  /// Waits until `count` connections were made since the start.
  ///
  /// - Returns: false if the task was cancelled or the origin stopped before.
  @discardableResult
  public func waitForConnections(count: Int) async -> Bool {
    await server.connectionMilestone.wait(for: count)
  }

  /// Waits until clients have left `count` replies before their end. The origin notices when it writes, and while it is held at a gate.
  ///
  /// - Returns: false if the task was cancelled or the origin stopped before.
  @discardableResult
  public func waitForAbandonedReplies(count: Int = 1) async -> Bool {
    await server.abandonedMilestone.wait(for: count)
  }

  /// Answers with another handler from the next request on.
  public func answer(with handler: @escaping Handler) {
    server.setHandler(handler)
  }

  /// Closes the port and every connection, held replies included, and returns when all threads have ended. Further calls return at once. It waits
  /// for a handler that is at work.
  ///
  /// Must not be called from a handler: it would wait for itself, and traps instead.
  public func stop() {
    server.stop()
  }
}
