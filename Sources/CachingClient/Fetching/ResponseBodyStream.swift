public import FoundationEssentials
import Synchronization

/// The body of a response, as bytes in memory or as a stream of chunks.
///
/// A body from the store can be read any number of times. A body from the network can be read once, and reading waits
/// for the next chunk. Releasing it unread cancels the transfer, unless other requests wait for the response.
///
/// Reading **throws** if the transfer ends early. The chunks received so far are then not the complete response. A
/// second reader of a body from the network, in the same task or another one, gets
/// ``CachingClientError/bodyAlreadyRead``, and the first one is not affected.
///
///     for try await chunk in response.body { … }
///     let all = try await response.body.collect(upTo: 1 << 20)
public struct ResponseBodyStream: AsyncSequence, Sendable {
  /// One chunk.
  public typealias Element = Data

  /// Returns the next chunk, or `nil` at the end.
  @usableFromInline package typealias Next = () async throws -> Data?

  @usableFromInline
  enum Source: Sendable {
    case bytes(Data)
    case stream(@Sendable () -> Next)
  }

  @usableFromInline let source: Source

  /// Creates a body whose bytes are in memory.
  @inlinable
  public init(_ bytes: Data) {
    source = .bytes(bytes)
  }

  /// A body without bytes.
  public static let empty = ResponseBodyStream(Data())

  /// Creates a body that requests its chunks one at a time, which applies back pressure to the sender.
  ///
  /// It can be read once.
  ///
  /// - Parameter next: Returns the next chunk, or `nil` at the end; throws if the transfer ended early. A call begins
  ///   only after the previous call has returned.
  public init(next: @escaping @Sendable () async throws -> Data?) {
    self.init(startOnce: { next })
  }

  /// Creates a body that can be read once.
  ///
  /// - Parameter start: Called when reading starts. Returns the function that returns the chunks.
  private init(startOnce start: @escaping @Sendable () -> Next) {
    let reader = FirstReader()
    source = .stream {
      // The first reader may be waiting for a chunk, and there is no place for a second one.
      reader.begin() ? start() : { throw CachingClientError.bodyAlreadyRead }
    }
  }

  /// Creates a body that can be read any number of times.
  ///
  /// - Parameter start: Called when reading starts. Returns the function that returns the chunks.
  package init(start: @escaping @Sendable () -> Next) {
    source = .stream(start)
  }

  /// Creates a body from a sequence of chunks, which must throw if the transfer ended early. It can be read once.
  public init<Chunks: AsyncSequence & Sendable>(_ chunks: Chunks) where Chunks.Element == Data {
    self.init(startOnce: {
      var iterator = chunks.makeAsyncIterator()
      return { try await iterator.next() }
    })
  }

  /// Returns the same body, whose chunks are passed to a function before its reader.
  ///
  /// - Parameter start: Called when reading starts. Returns the function, which receives each chunk, and nil at the
  ///   end. The reader receives the errors that it throws.
  func observed(by start: @escaping @Sendable () -> (Data?) throws -> Void) -> ResponseBodyStream {
    ResponseBodyStream(start: {
      var iterator = makeAsyncIterator()
      let observe = start()
      return {
        let chunk = try await iterator.next()
        try observe(chunk)
        return chunk
      }
    })
  }

  /// Returns the same body after it has arrived.
  ///
  /// - Parameters:
  ///   - completely: Whether to wait for all of the body, or only for the first bytes or the end.
  ///   - limit: The number of bytes after which the rest is not awaited.
  ///   - whenReceived: Called for each chunk.
  /// - Returns: Bytes in memory if the end has arrived.
  /// - Throws: The error that ends the transfer early.
  nonisolated(nonsending) func awaited(
    completely: Bool, upTo limit: Int, _ whenReceived: () -> Void
  ) async throws -> ResponseBodyStream {
    guard bytes == nil else { return self }
    let begun = BegunBody(makeAsyncIterator())
    var byteCount = 0
    while let chunk = try await begun.rest.next() {
      whenReceived()
      byteCount += chunk.count
      begun.chunks.append(chunk)
      guard byteCount <= limit, completely || byteCount == 0 else {
        return ResponseBodyStream(next: { try await begun.next() })
      }
    }
    // Some sequences end without an error when their task is cancelled. The body is then incomplete.
    try Task.checkCancellation()
    var collector = BodyCollector(limit: .max)
    for chunk in begun.chunks { _ = collector.append(chunk) }
    begun.chunks = []
    return ResponseBodyStream(collector.joined())
  }

  /// Returns the same body, with an action that runs before its reader gets the end, or now if all bytes are in memory.
  ///
  /// It does not run if the body is cut, or does not have the declared length.
  func whenComplete(
    _ length: DeclaredLength, _ action: @escaping @Sendable () async -> Void
  ) async -> ResponseBodyStream {
    if let bytes {
      if length.allows(bytes.count) { await action() }
      return self
    }
    return ResponseBodyStream(start: {
      var iterator = makeAsyncIterator()
      var action = Optional(action)
      var received = 0
      return {
        let chunk = try await iterator.next()
        received += chunk?.count ?? 0
        // Some sequences end without an error when their task is cancelled. The body is then incomplete.
        if chunk == nil, !Task.isCancelled, length.allows(received) { await action.take()?() }
        return chunk
      }
    })
  }

  /// Reads the body without keeping it. Returns its size in bytes.
  ///
  /// - Throws: ``CachingClientError/bodyTooLarge(limit:)``; the error that ends the transfer early.
  func readToEnd(upTo limit: Int) async throws -> Int {
    if let bytes { return bytes.count }
    var received = 0
    for try await chunk in self {
      received += chunk.count
      guard received <= limit else { throw CachingClientError.bodyTooLarge(limit: limit) }
    }
    try Task.checkCancellation()
    return received
  }

  /// Returns the same body, whose reader receives another one instead if it fails.
  ///
  /// - Parameter alternative: Returns the body that continues; nil to go on with this one. Throws the error for the
  ///   reader. Called with the error, and the number of bytes that the reader has received. Not called if the task was
  ///   cancelled.
  func replacedIfItFails(
    by alternative:
      @escaping @Sendable (_ error: any Error, _ receivedByteCount: Int) async throws -> ResponseBodyStream?
  ) -> ResponseBodyStream {
    ResponseBodyStream(start: {
      var iterator = makeAsyncIterator()
      var alternative = Optional(alternative)
      var received = 0
      return {
        while true {
          do {
            let chunk = try await iterator.next()
            received += chunk?.count ?? 0
            return chunk
          } catch {
            guard !(error is CancellationError), !Task.isCancelled, let replace = alternative else { throw error }
            alternative = nil
            if let other = try await replace(error, received) {
              iterator = other.makeAsyncIterator()
            } else {
              alternative = replace
            }
          }
        }
      }
    })
  }

  /// Returns the same body without its first bytes.
  func dropping(first byteCount: Int) -> ResponseBodyStream {
    ResponseBodyStream(start: {
      var iterator = makeAsyncIterator()
      var left = byteCount
      return {
        while let chunk = try await iterator.next() {
          guard left > 0 else { return chunk }
          guard chunk.count > left else {
            left -= chunk.count
            continue
          }
          defer { left = 0 }
          return Data(chunk.dropFirst(left))
        }
        return nil
      }
    })
  }

  /// Returns the same body, whose reader receives an error if it does not have exactly this number of bytes.
  func limited(to byteCount: Int) -> ResponseBodyStream {
    observed {
      var received = 0
      return { chunk in
        received += chunk?.count ?? 0
        guard received <= byteCount, chunk != nil || received == byteCount else {
          throw CachingClientError.incompleteBody(expectedByteCount: byteCount, receivedByteCount: received)
        }
      }
    }
  }

  /// Creates a body from several bodies, one after the other.
  init(joining bodies: [ResponseBodyStream]) {
    self.init(start: {
      var rest = bodies[...]
      var iterator: AsyncIterator?
      return {
        while true {
          if let chunk = try await iterator?.next() { return chunk }
          guard let body = rest.popFirst() else { return nil }
          iterator = body.makeAsyncIterator()
        }
      }
    })
  }

  /// Returns the same body, whose reader receives other errors.
  package func convertingErrors(_ convert: @escaping @Sendable (any Error) -> any Error) -> ResponseBodyStream {
    ResponseBodyStream(start: {
      var iterator = makeAsyncIterator()
      return {
        do { return try await iterator.next() } catch { throw convert(error) }
      }
    })
  }

  /// The bytes, if all of them are in memory; `nil` for a stream of chunks.
  public var bytes: Data? {
    if case .bytes(let bytes) = source { bytes } else { nil }
  }

  /// Starts reading. A body from the network can be read once; further iterators throw
  /// ``CachingClientError/bodyAlreadyRead``.
  public func makeAsyncIterator() -> AsyncIterator {
    switch source {
    case .bytes(let bytes): AsyncIterator(bytes: bytes.isEmpty ? nil : bytes, next: nil)
    case .stream(let start): AsyncIterator(bytes: nil, next: start())
    }
  }

  /// Returns the complete body as one value.
  ///
  /// - Parameter limit: The maximum size in bytes.
  /// - Throws: ``CachingClientError/bodyTooLarge(limit:)`` as soon as the body exceeds the limit; the error that ends
  ///   the transfer early.
  /// - Complexity: No copy for a body in memory or of one chunk; otherwise one copy of each byte.
  public func collect(upTo limit: Int) async throws -> Data {
    if let bytes {
      guard bytes.count <= limit else { throw CachingClientError.bodyTooLarge(limit: limit) }
      return bytes
    }
    var collector = BodyCollector(limit: limit)
    for try await chunk in self {
      guard collector.append(chunk) else { throw CachingClientError.bodyTooLarge(limit: limit) }
    }
    return collector.joined()
  }

  /// An iterator over the chunks. Use it in one task only.
  public struct AsyncIterator: AsyncIteratorProtocol {
    private var bytes: Data?
    private let next: Next?

    fileprivate init(bytes: Data?, next: Next?) {
      self.bytes = bytes
      self.next = next
    }

    /// Returns the next chunk, or `nil` at the end.
    public mutating func next() async throws -> Data? {
      guard let next else {
        defer { bytes = nil }
        return bytes
      }
      return try await next()
    }
  }
}

/// Whether a body has a reader.
private final class FirstReader: Sendable {
  private let hasBegun = Atomic(false)

  /// Returns whether the caller is the first reader.
  func begin() -> Bool { !hasBegun.exchange(true, ordering: .relaxed) }
}

/// A body that one task has begun to read, and another may read to the end.
///
/// Unchecked, because a body has one reader at a time: the task that creates this object reads until it passes it on.
private final class BegunBody: @unchecked Sendable {
  /// The chunks that were read and not passed on.
  var chunks: [Data] = []
  var rest: ResponseBodyStream.AsyncIterator

  init(_ rest: ResponseBodyStream.AsyncIterator) {
    self.rest = rest
  }

  func next() async throws -> Data? {
    chunks.isEmpty ? try await rest.next() : chunks.removeFirst()
  }
}

/// A collector of chunks up to a limit. It releases all chunks if the limit is exceeded.
package struct BodyCollector {
  private var chunks: [Data] = []
  private var byteCount = 0
  private let limit: Int

  package init(limit: Int) {
    self.limit = limit
  }

  /// Appends a chunk. If the limit would be exceeded, releases all chunks and returns `false`.
  package mutating func append(_ chunk: Data) -> Bool {
    let (sum, overflow) = byteCount.addingReportingOverflow(chunk.count)
    guard !overflow, sum <= limit else {
      chunks = []
      byteCount = 0
      return false
    }
    byteCount = sum
    if !chunk.isEmpty { chunks.append(chunk) }
    return true
  }

  /// Returns the chunks as one value, and releases each as soon as it is copied.
  package mutating func joined() -> Data {
    if chunks.count == 1 { return chunks[0] }
    // Reserve the received size, not the declared one: a false Content-Length must not reserve memory.
    var all = Data(capacity: byteCount)
    for index in chunks.indices {
      all.append(chunks[index])
      chunks[index] = Data()
    }
    return all
  }
}
