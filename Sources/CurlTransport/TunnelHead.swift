/// The head of a proxy's response to CONNECT, of which only the size and the status matter.
///
/// libcurl reads that response byte by byte, and all bytes that have arrived within one call. After the status 407 it
/// also reads the content, however long it is. Meanwhile the I/O thread serves no other transfer, and no time limit is
/// checked. A tunnel that the proxy refuses is therefore left at the status line.
struct TunnelHead {
  /// The maximum size of the head. Reading it takes a fraction of a second.
  static let maximumByteCount = 64 << 10

  private var byteCount = 0

  /// Appends a line, with its line end.
  ///
  /// - Throws: `CurlTransportError` if the proxy refuses the tunnel, or does not respond with HTTP.
  mutating func append(_ line: UnsafeRawBufferPointer) throws(CurlTransportError) {
    if byteCount == 0 { try Self.checkStatus(line) }
    byteCount += line.count
    guard byteCount <= Self.maximumByteCount else {
      throw CurlTransportError(.cannotConnect, "the head of the proxy's response to CONNECT is too large")
    }
  }

  private static func checkStatus(_ line: UnsafeRawBufferPointer) throws(CurlTransportError) {
    let parts = line.split(separator: UInt8(ascii: " "), maxSplits: 1, omittingEmptySubsequences: true)
    guard parts.count == 2, parts[0].starts(with: "HTTP/1.".utf8),
      let status = Int(digits: parts[1].drop { $0 == UInt8(ascii: " ") }.prefix { $0.isDigit })
    else { throw CurlTransportError(.cannotConnect, "the proxy's response to CONNECT is not HTTP/1.1") }
    guard 200..<300 ~= status else {
      throw CurlTransportError(.cannotConnect, "the proxy refused the tunnel with the status \(status)")
    }
  }
}
