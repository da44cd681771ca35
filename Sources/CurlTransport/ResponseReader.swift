import FoundationEssentials

/// Reads the content of one response, decoding it on the reader's thread. When nobody holds it any longer, a transfer
/// that has not ended is cancelled.
///
/// `@unchecked Sendable`: a `ResponseBody` has one reader, which asks for a piece only after the one before has come;
/// the decoder is used by that reader alone.
final class ResponseReader: @unchecked Sendable {
  private let transfer: Transfer
  private let connections: ConnectionPoolHandle
  private var decoder: ContentDecoder?
  /// What has been decoded ahead of the reader, and why no more was.
  private var decoded = Data()
  private var failure: CurlTransportError?

  /// - Parameter received: What has been taken of the exchange's content already.
  init(
    _ transfer: Transfer, over connections: ConnectionPoolHandle, decoder: consuming ContentDecoder?,
    received: Data = Data()
  ) {
    self.transfer = transfer
    self.connections = connections
    self.decoder = decoder
    self.decoder?.append(received)
  }

  deinit {
    cancel()
  }

  /// The next piece; nil at the proven or, for a response that only ends with its connection, the assumed end.
  ///
  /// - Throws: `CurlTransportError` if the response ended early or cannot be decoded, `CancellationError`.
  func next() async throws -> Data? {
    if !decoded.isEmpty {
      defer { decoded = Data() }
      return decoded
    }
    if let failure { throw failure }
    while true {
      if let piece = try decoder?.next() { return piece }
      guard let piece = try await nextEncoded() else {
        try decoder?.checkEnd()
        return nil
      }
      if decoder == nil { return piece }
      decoder?.append(piece)
    }
  }

  /// Decodes all of the content, which has come as a whole.
  ///
  /// - Returns: nil if it is large, or not what it should be; ``next()`` then gives it piece by piece, and tells what is
  ///   wrong.
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
      try await transfer.exchange.nextPiece { connections.post(.readOn(transfer)) }
    } onCancel: {
      cancel()
    }
  }

  private func cancel() {
    if transfer.exchange.fail(CancellationError()) { connections.post(.cancel(transfer)) }
  }
}
