// The declarations of swift-openapi-runtime 1.13.4 that the adapters use.
import Foundation
import HTTPTypes
import Synchronization

/// How often content can be read.
public enum IterationBehavior: Sendable {
  /// Once.
  case single
  /// Any number of times.
  case multiple
}

/// The content of a request or a response.
public final class HTTPBody: Sendable, AsyncSequence {
  /// One chunk.
  public typealias ByteChunk = ArraySlice<UInt8>
  /// One chunk.
  public typealias Element = ByteChunk

  /// The number of bytes.
  public enum Length: Sendable, Equatable {
    /// Not known before the end.
    case unknown
    /// Known in advance.
    case known(Int64)
  }

  /// How often the content can be read.
  public let iterationBehavior: IterationBehavior
  /// The number of bytes.
  public let length: Length
  private let makeNext: @Sendable () -> (() async throws -> ByteChunk?)
  private let isRead = Atomic(false)

  /// Content from a collection of bytes.
  public init(_ bytes: some Collection<UInt8> & Sendable) {
    let chunk = ByteChunk(bytes)
    length = .known(Int64(chunk.count))
    iterationBehavior = .multiple
    makeNext = {
      var rest: ByteChunk? = chunk
      return {
        defer { rest = nil }
        return rest
      }
    }
  }

  /// Content from an asynchronous sequence of byte sequences.
  public init<Bytes: AsyncSequence>(_ sequence: Bytes, length: Length, iterationBehavior: IterationBehavior)
  where Bytes: Sendable, Bytes.Element: Sequence & Sendable, Bytes.Element.Element == UInt8 {
    self.length = length
    self.iterationBehavior = iterationBehavior
    makeNext = {
      var iterator = sequence.makeAsyncIterator()
      return { try await iterator.next().map { ByteChunk($0) } }
    }
  }

  /// Starts reading. Content that can be read once throws at the second time.
  public func makeAsyncIterator() -> Iterator {
    guard !isRead.exchange(true, ordering: .relaxed) || iterationBehavior == .multiple else {
      return Iterator(read: { throw TooManyIterations() })
    }
    return Iterator(read: makeNext())
  }

  private struct TooManyIterations: Error {}

  /// Reads the chunks.
  public struct Iterator: AsyncIteratorProtocol {
    fileprivate let read: () async throws -> ByteChunk?

    /// The next chunk; nil at the end.
    public mutating func next() async throws -> ByteChunk? { try await read() }
  }
}

/// Sends the requests of a generated client.
public protocol ClientTransport: Sendable {
  /// Sends a request and returns when the head of the response has arrived.
  func send(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String
  ) async throws -> (HTTPResponse, HTTPBody?)
}

/// Sees each request of a generated client before its transport does.
public protocol ClientMiddleware: Sendable {
  /// Returns the response to a request, usually by calling the next middleware or the transport.
  func intercept(
    _ request: HTTPRequest, body: HTTPBody?, baseURL: URL, operationID: String,
    next: @Sendable (HTTPRequest, HTTPBody?, URL) async throws -> (HTTPResponse, HTTPBody?)
  ) async throws -> (HTTPResponse, HTTPBody?)
}
