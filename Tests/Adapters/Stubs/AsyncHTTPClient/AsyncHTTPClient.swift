// The declarations of async-http-client 1.36.1 that the adapters use. Tests say how requests are sent.
import NIOCore
import NIOHTTP1

/// Sends requests.
public final class HTTPClient: Sendable {
  /// The settings of a client.
  public struct Configuration: Sendable {
    /// Whether redirects are followed.
    public struct RedirectConfiguration: Sendable, Equatable {
      private let isFollowing: Bool

      /// Returns redirects as responses.
      public static let disallow = RedirectConfiguration(isFollowing: false)
    }

    /// Time limits.
    public struct Timeout: Sendable {
      /// The time for a connection.
      public var connect: TimeAmount?
      /// The time between two reads.
      public var read: TimeAmount?

      /// Time limits.
      public init(connect: TimeAmount? = nil, read: TimeAmount? = nil) {
        self.connect = connect
        self.read = read
      }
    }

    /// Whether redirects are followed.
    public var redirectConfiguration: RedirectConfiguration?
    /// Time limits.
    public var timeout: Timeout

    /// Settings.
    public init(redirectConfiguration: RedirectConfiguration? = nil, timeout: Timeout = Timeout()) {
      self.redirectConfiguration = redirectConfiguration
      self.timeout = timeout
    }
  }

  package typealias Executor = @Sendable (HTTPClientRequest, TimeAmount) async throws -> HTTPClientResponse
  private let executor: Executor

  package init(executor: @escaping Executor) { self.executor = executor }

  /// Sends a request and returns when the head of the response has arrived.
  public func execute(_ request: HTTPClientRequest, timeout: TimeAmount) async throws -> HTTPClientResponse {
    try await executor(request, timeout)
  }
}

/// A request.
public struct HTTPClientRequest: Sendable {
  /// The target.
  public var url: String
  /// The method.
  public var method = HTTPMethod.GET
  /// The header fields.
  public var headers = HTTPHeaders()
  /// The content.
  public var body: Body?

  /// A GET request.
  public init(url: String) { self.url = url }

  /// The content of a request.
  public struct Body: Sendable {
    package let bytes: [UInt8]

    /// Content from a collection of bytes.
    public static func bytes<Bytes: RandomAccessCollection & Sendable>(_ bytes: Bytes) -> Self
    where Bytes.Element == UInt8 {
      Body(bytes: Array(bytes))
    }
  }
}

/// A response.
public struct HTTPClientResponse: Sendable {
  /// The version of HTTP that carried the response.
  public var version: HTTPVersion
  /// The status.
  public var status: HTTPResponseStatus
  /// The header fields.
  public var headers: HTTPHeaders
  /// The content.
  public var body: Body

  /// A response.
  public init(version: HTTPVersion = .http1_1, status: HTTPResponseStatus, headers: HTTPHeaders, body: Body) {
    self.version = version
    self.status = status
    self.headers = headers
    self.body = body
  }

  /// The content of a response.
  public struct Body: AsyncSequence, Sendable {
    /// One chunk.
    public typealias Element = ByteBuffer
    private let makeNext: @Sendable () -> (() async throws -> ByteBuffer?)

    /// Content from a sequence of buffers.
    public static func stream<SequenceOfBytes: AsyncSequence & Sendable>(_ sequenceOfBytes: SequenceOfBytes) -> Self
    where SequenceOfBytes.Element == ByteBuffer {
      Body {
        var iterator = sequenceOfBytes.makeAsyncIterator()
        return { try await iterator.next() }
      }
    }

    /// Starts reading.
    public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(read: makeNext()) }

    /// Reads the chunks.
    public struct AsyncIterator: AsyncIteratorProtocol {
      fileprivate let read: () async throws -> ByteBuffer?

      /// The next chunk; nil at the end.
      public mutating func next() async throws -> ByteBuffer? { try await read() }
    }
  }
}
