extension RequestKey: CustomStringConvertible {
  /// The URL of the key, preceded by the method unless it is `GET`.
  ///
  /// It contains the query, so do not write it to default logs.
  public var description: String {
    method == "GET" ? urlString : "\(method) \(urlString)"
  }

  /// The URL of the key, without fragment and user, and with the digits of percent-encoding in upper case.
  public var urlString: String {
    String(unsafeUninitializedCapacity: bytes.count + 3) { buffer in
      var writer = KeyWriter(buffer: buffer)
      forEachPieceOfURL { writer.append($0) }
      return writer.count
    }
  }

  /// Whether `urlString` is the URL of the key, regardless of the case of the digits of percent-encoding.
  public func isMade(of urlString: String) -> Bool {
    var text = urlString
    return text.withUTF8 { text in
      var offset = 0
      var isSame = true
      forEachPieceOfURL { piece in
        guard isSame, let start = piece.baseAddress else { return }
        isSame =
          text.count - offset >= piece.count
          && PercentEncoding.areEqual(text.baseAddress! + offset, start, count: piece.count)
        offset += piece.count
      }
      return isSame && offset == text.count
    }
  }

  /// Calls `body` with the parts of the URL's text in order.
  private func forEachPieceOfURL(_ body: (UnsafeBufferPointer<UInt8>) -> Void) {
    bytes.withUnsafeBufferPointer { bytes in
      // `host 00 scheme ":" port 00 target 00`
      func end(from start: Int, _ byte: UInt8 = 0) -> Int? {
        URLParts.find(byte, in: UnsafeBufferPointer(rebasing: bytes[start...]), before: bytes.count - start)
          .map { start + $0 }
      }
      guard let hostEnd = end(from: 0), let originEnd = end(from: hostEnd + 1),
        let targetEnd = end(from: originEnd + 1), let colon = end(from: hostEnd + 1, UInt8(ascii: ":")),
        colon < originEnd
      else { return }
      func part(_ range: Range<Int>) -> UnsafeBufferPointer<UInt8> { UnsafeBufferPointer(rebasing: bytes[range]) }
      func piece(_ text: StaticString) -> UnsafeBufferPointer<UInt8> {
        UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount)
      }
      let scheme = part((hostEnd + 1)..<colon)
      let portAndColon = part(colon..<originEnd)
      let target = part((originEnd + 1)..<targetEnd)
      body(scheme)
      if hostEnd == 0, target.first != UInt8(ascii: "/") {
        body(piece(":"))
      } else {
        body(piece("://"))
        body(part(0..<hostEnd))
        let isDefaultPort =
          portAndColon.count == 1 || scheme.elementsEqual(piece("http")) && portAndColon.elementsEqual(piece(":80"))
          || scheme.elementsEqual(piece("https")) && portAndColon.elementsEqual(piece(":443"))
        if !isDefaultPort { body(portAndColon) }
      }
      body(target)
    }
  }

  /// The host in lowercase; empty for a URL without one.
  public var host: String { part(0) }

  /// The request method.
  public var method: String { part(3) }

  /// The partition; empty by default.
  public var partition: String { part(4) }

  private func part(_ number: Int) -> String {
    let parts = bytes.split(separator: 0, omittingEmptySubsequences: false)
    guard number < parts.count else { return "" }
    let part = parts[number]
    return part.contains(KeyWriter.zeroInText)
      ? String(decoding: part.map { $0 == KeyWriter.zeroInText ? 0 : $0 }, as: UTF8.self)
      : String(decoding: part, as: UTF8.self)
  }
}
