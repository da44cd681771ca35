import CZlib
import FoundationEssentials

/// Decodes a content coding incrementally, and checks that the content is complete.
///
/// Not thread-safe: one reader at a time uses it.
package struct ContentDecoder: ~Copyable {
  /// A supported coding.
  package enum Coding: Sendable, Hashable {
    case gzip
    case deflate

    /// Creates the coding in a response's Content-Encoding; nil if there is none or it is not supported.
    init?(contentEncoding values: [String]) {
      guard values.count == 1 else { return nil }
      switch values[0].lowercased() {
      case "gzip", "x-gzip": self = .gzip
      case "deflate": self = .deflate
      default: return nil
      }
    }
  }

  /// The maximum number of bytes that one call decodes.
  static let maximumPieceByteCount = 64 << 10
  /// The decoded size up to which the expansion factor is not checked.
  static let uncheckedByteCount = 16 << 20

  private let coding: Coding
  private let maximumExpansionFactor: Int
  /// Allocated on the heap, because zlib keeps a pointer to it.
  private let stream: UnsafeMutablePointer<z_stream>
  private var isInitialized = false
  private var hasEnded = false
  /// The encoded bytes not decoded yet, from `firstIndex` on.
  private var input = Data()
  private var firstIndex = 0
  private var encodedByteCount = 0
  private var decodedByteCount = 0

  /// Creates a decoder.
  ///
  /// - Parameter maximumExpansionFactor: The maximum decoded size relative to the encoded one, from 16 MiB on.
  package init(_ coding: Coding, maximumExpansionFactor: Int) {
    self.coding = coding
    self.maximumExpansionFactor = max(1, maximumExpansionFactor)
    stream = .allocate(capacity: 1)
    stream.initialize(to: z_stream())
  }

  deinit {
    if isInitialized { inflateEnd(stream) }
    stream.deallocate()
  }

  /// Appends a part of the encoded content. All previous parts must have been decoded.
  package mutating func append(_ piece: Data) {
    encodedByteCount += piece.count
    if firstIndex == input.count {
      input = piece.startIndex == 0 ? piece : Data(piece)
    } else {
      var rest = Data(input[firstIndex...])
      rest.append(piece)
      input = rest
    }
    firstIndex = 0
  }

  /// Returns the next part of the decoded content; nil if more encoded content is needed.
  ///
  /// - Throws: `CurlTransportError` if the content does not match its coding, or expands too much.
  package mutating func next() throws(CurlTransportError) -> Data? {
    while firstIndex < input.count || isInitialized && !hasEnded {
      if hasEnded { try startNextMember() }
      guard try start() else { return nil }
      let piece = try inflatePiece()
      decodedByteCount += piece.count
      guard decodedByteCount <= Self.uncheckedByteCount || decodedByteCount / maximumExpansionFactor <= encodedByteCount
      else {
        throw CurlTransportError(.excessiveExpansion, "the decoded content is too large for its encoded size")
      }
      if !piece.isEmpty { return piece }
      if firstIndex == input.count { return nil }
    }
    return nil
  }

  /// Checks that the content is complete. Content without any byte counts as complete, because it was omitted.
  ///
  /// - Throws: `CurlTransportError` if a part is missing.
  package func checkEnd() throws(CurlTransportError) {
    guard encodedByteCount == 0 || hasEnded && firstIndex == input.count else {
      throw CurlTransportError(.undecodableContent, "the encoded content ended early")
    }
  }

  /// Initializes the stream unless that is done; returns false if more bytes are needed for it.
  private mutating func start() throws(CurlTransportError) -> Bool {
    if isInitialized { return true }
    var windowBits = 15 + 16
    if coding == .deflate {
      guard input.count >= 2 else { return false }
      // Some servers send raw deflate data (RFC 1951) without the zlib header (RFC 1950) that "deflate" requires.
      let header = UInt16(input[0]) << 8 | UInt16(input[1])
      windowBits = header & 0x0f00 == 0x0800 && header % 31 == 0 ? 15 : -15
    }
    guard czlib_inflate_init(stream, CInt(windowBits)) == Z_OK else {
      throw CurlTransportError(.unavailable, "there is no memory for decoding")
    }
    isInitialized = true
    return true
  }

  /// Starts the next gzip member (RFC 1952 section 2.2). Any other data after the end is an error.
  private mutating func startNextMember() throws(CurlTransportError) {
    guard coding == .gzip, input[firstIndex] == 0x1f, inflateReset(stream) == Z_OK else {
      throw CurlTransportError(.undecodableContent, "data follows the end of the encoded content")
    }
    hasEnded = false
  }

  private mutating func inflatePiece() throws(CurlTransportError) -> Data {
    var output = Data(count: Self.maximumPieceByteCount)
    var result = Z_OK
    let first = firstIndex
    let stream = stream
    let (consumed, produced) = input.withUnsafeBytes { source in
      output.withUnsafeMutableBytes { target in
        let count = source.count - first
        let bytes = source.baseAddress.map { $0.advanced(by: first).assumingMemoryBound(to: Bytef.self) }
        stream.pointee.next_in = UnsafeMutablePointer(mutating: bytes)
        stream.pointee.avail_in = uInt(count)
        stream.pointee.next_out = target.baseAddress?.assumingMemoryBound(to: Bytef.self)
        stream.pointee.avail_out = uInt(target.count)
        result = inflate(stream, Z_NO_FLUSH)
        return (count - Int(stream.pointee.avail_in), target.count - Int(stream.pointee.avail_out))
      }
    }
    firstIndex += consumed
    switch result {
    case Z_STREAM_END: hasEnded = true
    // Z_BUF_ERROR means that more input is needed.
    case Z_OK, Z_BUF_ERROR: break
    default: throw CurlTransportError(.undecodableContent, "the content does not match its Content-Encoding")
    }
    // Copy a small part. Otherwise a reader that collects parts would retain a large buffer for each.
    return produced < output.count / 2 ? Data(output.prefix(produced)) : output.prefix(produced)
  }
}
