public import FoundationEssentials

/// The body of a response: bytes at hand, or chunks that are still on their way.
///
/// A body from the store (``bytes`` is not `nil`) can be read any number of times. A body from the network can be read once;
/// reading waits for the next chunk, and dropping the body unread ends the transfer unless other requests wait for its result.
///
/// A transfer that ended before its end **throws**: what was received so far is then not the response.
///
///     for try await chunk in response.body { … }
///     let all = try await response.body.collect(upTo: 1 << 20)
public struct ResponseBody: AsyncSequence, Sendable {
  /// One chunk.
  public typealias Element = Data

  /// Gives the chunk after the last one, or `nil` at the end.
  @usableFromInline typealias Next = () async throws -> Data?

  @usableFromInline
  enum Source: Sendable {
    case bytes(Data)
    case stream(@Sendable () -> Next)
  }

  @usableFromInline let source: Source

  /// A body whose bytes are at hand.
  @inlinable
  public init(_ bytes: Data) {
    source = .bytes(bytes)
  }

  /// A body without bytes.
  public static let empty = ResponseBody(Data())

  /// A body that asks for its chunks one at a time, which gives the sender back pressure.
  ///
  /// - Parameter next: gives the next chunk, `nil` at the end; it throws if the transfer ended early. It is never called again
  ///   before an earlier call returned.
  public init(next: @escaping @Sendable () async throws -> Data?) {
    source = .stream { next }
  }

  /// A body made of the chunks of a sequence, for a transport that has one. The sequence throws if the transfer ended early.
  public init<Chunks: AsyncSequence & Sendable>(_ chunks: Chunks) where Chunks.Element == Data {
    source = .stream {
      var iterator = chunks.makeAsyncIterator()
      return { try await iterator.next() }
    }
  }

  /// The bytes, if all of them are at hand; `nil` for a body that is still on its way.
  public var bytes: Data? {
    if case .bytes(let bytes) = source { bytes } else { nil }
  }

  /// Starts reading. A body from the network can be read once.
  public func makeAsyncIterator() -> AsyncIterator {
    switch source {
    case .bytes(let bytes): AsyncIterator(bytes: bytes.isEmpty ? nil : bytes, next: nil)
    case .stream(let start): AsyncIterator(bytes: nil, next: start())
    }
  }

  /// The whole body as one value.
  ///
  /// - Parameter limit: the largest number of bytes accepted.
  /// - Throws: ``CachingClientError/bodyTooLarge(limit:)`` as soon as the limit is passed, and whatever ends the transfer early.
  /// - Complexity: no copy for a body at hand or of one chunk, else one copy of each byte.
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

  /// Walks over the chunks. Not to be shared between tasks.
  public struct AsyncIterator: AsyncIteratorProtocol {
    private var bytes: Data?
    private let next: Next?

    fileprivate init(bytes: Data?, next: Next?) {
      self.bytes = bytes
      self.next = next
    }

    /// The next chunk, or `nil` at the end.
    public mutating func next() async throws -> Data? {
      guard let next else {
        defer { bytes = nil }
        return bytes
      }
      return try await next()
    }
  }
}

/// Gathers chunks up to a limit; past the limit it lets go of all of them.
struct BodyCollector {
  private var chunks: [Data] = []
  private(set) var byteCount = 0
  private let limit: Int

  init(limit: Int) {
    self.limit = limit
  }

  /// Takes one more chunk, or gives all up and returns `false` if the limit would be passed.
  mutating func append(_ chunk: Data) -> Bool {
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

  func joined() -> Data {
    if chunks.count == 1 { return chunks[0] }
    // The size is what arrived, never what a Content-Length claimed: a lie must not reserve memory.
    var all = Data(capacity: byteCount)
    for chunk in chunks { all.append(chunk) }
    return all
  }
}
