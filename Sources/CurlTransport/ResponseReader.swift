import FoundationEssentials

/// Reads the content of a response, and decodes it on the reader's thread. Releasing it cancels an unfinished transfer.
///
/// `@unchecked Sendable`: a `ResponseBodyStream` has one reader, which requests a part only after the previous one has
/// arrived. Only that reader uses the decoder.
final class ResponseReader: @unchecked Sendable {
  private let transfer: Transfer
  private let connections: ConnectionPoolHandle
  private var decoder: ContentDecoder?
  /// The number of bytes that were decoded since other tasks could last use the reader's thread.
  private var decodedByteCount = 0
  /// Content that was decoded ahead of the reader, and the error that ended the decoding.
  private var decoded = Data()
  private var failure: CurlTransportError?

  /// The number of decoded bytes after which other tasks can use the reader's thread.
  ///
  /// A few kilobytes of received content can become tens of megabytes, and a reader that does not wait for the origin
  /// would decode all of them at once.
  static let yieldingByteCount = 256 << 10

  /// Creates a reader.
  ///
  /// - Parameter received: Content that was already taken from the exchange.
  init(
    _ transfer: Transfer, over connections: ConnectionPoolHandle, decoder: consuming ContentDecoder?, received: Data
  ) {
    self.transfer = transfer
    self.connections = connections
    self.decoder = decoder
    self.decoder?.append(received)
  }

  deinit {
    cancel()
  }

  /// Returns the next part; nil at the end.
  ///
  /// If a response ends with its connection, a lost connection also counts as the end.
  /// - Throws: `CurlTransportError` if the response ended early or cannot be decoded; `CancellationError`.
  func next() async throws -> Data? {
    if !decoded.isEmpty {
      defer { decoded = Data() }
      return decoded
    }
    if let failure { throw failure }
    while true {
      if let piece = try decoder?.next() {
        decodedByteCount += piece.count
        if decodedByteCount >= Self.yieldingByteCount {
          decodedByteCount = 0
          await Task.yield()
        }
        return piece
      }
      guard let piece = try await nextEncoded() else {
        try decoder?.checkEnd()
        return nil
      }
      if decoder == nil { return piece }
      decoder?.append(piece)
    }
  }

  /// Decodes the content after all of it has arrived.
  ///
  /// - Returns: Nil if the content is large or invalid. Then ``next()`` returns its parts, and throws the error.
  func decodeAtOnce() -> Data? {
    do throws(CurlTransportError) {
      while let piece = try decoder?.next() {
        decoded += piece
        if decoded.count > Exchange.pausingByteCount { return nil }
      }
      try decoder?.checkEnd()
      defer { decoded = Data() }
      return decoded
    } catch {
      failure = error
      return nil
    }
  }

  private func nextEncoded() async throws -> Data? {
    try await withTaskCancellationHandler {
      try await transfer.exchange.nextPiece { connections.post(.resumeReceiving(transfer)) }
    } onCancel: {
      cancel()
    }
  }

  private func cancel() {
    if transfer.exchange.fail(CancellationError()) { connections.post(.cancel(transfer)) }
  }
}
