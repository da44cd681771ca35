// The declarations of async-http-client 1.36.1 that the adapters use. Tests say how requests are sent.
import Foundation
import NIOCore
import NIOHTTP1
import Synchronization

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

  package let configuration: Configuration

  package init(executor: @escaping Executor) {
    self.executor = executor
    configuration = Configuration()
  }

  /// A client with settings. It has no connections.
  public init(configuration: Configuration = Configuration()) {
    self.configuration = configuration
    executor = { _, _ in throw HTTPClientError.deadlineExceeded }
  }

  /// Sends a request and returns when the head of the response has arrived.
  public func execute(_ request: HTTPClientRequest, timeout: TimeAmount) async throws -> HTTPClientResponse {
    try await executor(request, timeout)
  }

  /// Sends a request and returns when the head of the response has arrived.
  public func execute(_ request: HTTPClientRequest, deadline: NIODeadline) async throws -> HTTPClientResponse {
    try await execute(request, timeout: deadline - .now())
  }
}

/// An error of a client.
public struct HTTPClientError: Error, Equatable {
  private let name: String

  /// The URL is not valid.
  public static let invalidURL = HTTPClientError(name: "invalidURL")
  /// There are too many redirects.
  public static let redirectLimitReached = HTTPClientError(name: "redirectLimitReached")
  /// The deadline has passed.
  public static let deadlineExceeded = HTTPClientError(name: "deadlineExceeded")
}

/// Settings of TLS, from swift-nio-ssl.
public struct TLSConfiguration: Sendable {
  package init() {}
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
  /// The settings of TLS for this request.
  public var tlsConfiguration: TLSConfiguration?
  /// The address from which the request is sent.
  public var localAddress: String?

  /// A GET request.
  public init(url: String) { self.url = url }

  /// The content of a request.
  public struct Body: AsyncSequence, Sendable {
    /// One chunk.
    public typealias Element = ByteBuffer
    private let makeNext: @Sendable () -> (() async throws -> ByteBuffer?)

    /// The length of content.
    public struct Length: Sendable {
      /// Not known in advance.
      public static let unknown = Length()
    }

    /// Content from a collection of bytes.
    public static func bytes<Bytes: RandomAccessCollection & Sendable>(_ bytes: Bytes) -> Self
    where Bytes.Element == UInt8 {
      Body {
        var rest: ByteBuffer? = ByteBuffer(bytes: bytes)
        return {
          defer { rest = nil }
          return rest
        }
      }
    }

    /// Content from a sequence of buffers, which a client reads once each time it sends the content.
    public static func stream<SequenceOfBytes: AsyncSequence & Sendable>(
      _ sequenceOfBytes: SequenceOfBytes, length: Length
    ) -> Self where SequenceOfBytes.Element == ByteBuffer {
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

/// A request and the head of its response.
public struct HTTPClientRequestResponse: Sendable {
  /// The request.
  public var request: HTTPClientRequest
  /// The head of the response.
  public var responseHead: HTTPResponseHead

  /// A request and the head of its response.
  public init(request: HTTPClientRequest, responseHead: HTTPResponseHead) {
    self.request = request
    self.responseHead = responseHead
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
  /// The requests and heads of all hops.
  public var history: [HTTPClientRequestResponse]
  /// The URL after redirects.
  public var url: URL? { history.last.flatMap { URL(string: $0.request.url) } }

  /// A response.
  public init(
    version: HTTPVersion = .http1_1, status: HTTPResponseStatus, headers: HTTPHeaders, body: Body,
    history: [HTTPClientRequestResponse] = []
  ) {
    self.version = version
    self.status = status
    self.headers = headers
    self.body = body
    self.history = history
  }

  /// The content of a response.
  public struct Body: AsyncSequence, Sendable {
    /// One chunk.
    public typealias Element = ByteBuffer
    private let makeNext: @Sendable () -> (() async throws -> ByteBuffer?)

    /// Content from a sequence of buffers, which can be read once.
    public static func stream<SequenceOfBytes: AsyncSequence & Sendable>(_ sequenceOfBytes: SequenceOfBytes) -> Self
    where SequenceOfBytes.Element == ByteBuffer {
      let isRead = ReadOnce()
      return Body {
        precondition(isRead.begin(), "the content of a response is read twice")
        var iterator = sequenceOfBytes.makeAsyncIterator()
        return { try await iterator.next() }
      }
    }

    /// Content from a buffer, which can be read once.
    public static func bytes(_ byteBuffer: ByteBuffer) -> Self {
      stream(
        AsyncStream { continuation in
          continuation.yield(byteBuffer)
          continuation.finish()
        })
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

private final class ReadOnce: Sendable {
  private let isRead = Atomic(false)

  /// Returns whether this is the first reading.
  func begin() -> Bool { !isRead.exchange(true, ordering: .relaxed) }
}
