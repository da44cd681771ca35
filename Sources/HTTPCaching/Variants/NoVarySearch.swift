/// The differences between the queries of URLs that do not matter, by the `No-Vary-Search` of a response
/// (draft-ietf-httpbis-no-vary-search).
///
/// The draft calls this a URL variation config. A response whose field is absent or without effect has none.
package struct URLVariation: Sendable, Hashable {
  /// The maximum size of ``text``: 2,048 bytes. A field that needs more has no effect.
  ///
  /// The bound limits the work per parameter of a URL, because an origin chooses the names.
  package static let maximumByteCount = 2048

  /// The canonical text, in printable ASCII. Two texts are equal if and only if the variations have the same effect.
  ///
  /// It begins with `-` if the names are those of parameters that do not count, and with `+` if only those parameters
  /// count. `=` means that the order counts, and `~` that it does not. The names follow, sorted, in the spelling of
  /// `FormWriter`, and a `&` after each.
  package let text: String

  /// Creates the variation of a response; nil if the field is absent, malformed or without effect.
  ///
  /// Two rules differ from draft 10. `key-order` alone has an effect, as in the draft's own examples. `params` and
  /// `params=?1`, the syntax of earlier drafts, mean all parameters, except those that `except` names.
  package init?(_ fields: HeaderFields) {
    let lines = fields.values(of: "No-Vary-Search")
    guard !lines.isEmpty, let members = StructuredFields.dictionary(lines) else { return nil }
    var ignoresOrder = false
    var params: StructuredFields.Value?
    var except: StructuredFields.Value?
    for (key, value) in members {
      switch key {
      case "key-order":
        guard case .boolean(let isTrue) = value else { return nil }
        ignoresOrder = isTrue
      case "params": params = value
      case "except": except = value
      default: continue
      }
    }
    switch (params, except) {
    case (nil, nil), (.boolean(false), nil): self.init(ignoring: [], ignoresOrder: ignoresOrder)
    case (.strings(let names), nil): self.init(ignoring: names, ignoresOrder: ignoresOrder)
    case (.boolean(true), nil): self.init(countingOnly: [], ignoresOrder: ignoresOrder)
    case (nil, .strings(let names)), (.boolean(true), .strings(let names)):
      self.init(countingOnly: names, ignoresOrder: ignoresOrder)
    default: return nil
    }
  }

  /// Creates a variation from its ``text``; nil for a text of another form.
  package init?(text: String) {
    var copy = text
    let isValid = copy.withUTF8 { bytes in
      guard bytes.count >= 2, bytes.count <= Self.maximumByteCount else { return false }
      return (bytes[0] == UInt8(ascii: "-") || bytes[0] == UInt8(ascii: "+"))
        && (bytes[1] == UInt8(ascii: "=") || bytes[1] == UInt8(ascii: "~"))
        && (bytes.count == 2 || bytes[bytes.count - 1] == UInt8(ascii: "&"))
    }
    guard isValid else { return nil }
    self.text = text
  }

  private init?(ignoring names: [String], ignoresOrder: Bool) {
    // All parameters count, and their order.
    if names.isEmpty, !ignoresOrder { return nil }
    self.init(text: (ignoresOrder ? "-~" : "-=") + Self.list(names))
  }

  private init?(countingOnly names: [String], ignoresOrder: Bool) {
    let names = Self.list(names)
    // Parameters of one name keep their order in any case.
    let hasSeveral = names.utf8.count { $0 == UInt8(ascii: "&") } > 1
    self.init(text: (ignoresOrder && hasSeveral ? "+~" : "+=") + names)
  }

  /// Returns the names in canonical spelling, sorted, each once (section 5.3 of the draft).
  private static func list(_ names: [String]) -> String {
    Set(names.map(FormWriter.canonicalName)).sorted().map { $0 + "&" }.joined()
  }

  /// Returns the size of the buffer that simplifying a URL needs.
  package static func maximumByteCount(forURLOf byteCount: Int) -> Int {
    FormWriter.maximumByteCount(forQueryOf: byteCount)
  }

  /// Writes a URL without its fragment and without the parameters that do not count, in canonical form, to a buffer.
  ///
  /// Two URLs with the same text before their queries have equal results if and only if they are equivalent modulo this
  /// variation (section 6 of the draft). A query is read as `application/x-www-form-urlencoded`. If no parameter is
  /// left, the result has no `?`. If the order does not count, parameters are sorted by name, and those of one name
  /// keep their order. Names are sorted by their bytes in the result, because any fixed order serves.
  ///
  /// - Parameter url: The text of an absolute URL.
  /// - Returns: The size of the result.
  /// - Complexity: Linear in the URL, times the size of ``text``; sorting adds a logarithm.
  package func simplify(_ url: UnsafeBufferPointer<UInt8>, to output: UnsafeMutableBufferPointer<UInt8>) -> Int {
    var text = text
    return text.withUTF8 { Self.simplify(url, by: $0, to: FormWriter(buffer: output)) }
  }

  private static func simplify(
    _ url: UnsafeBufferPointer<UInt8>, by text: UnsafeBufferPointer<UInt8>, to writer: FormWriter
  ) -> Int {
    var writer = writer
    let mark = FormWriter.find(UInt8(ascii: "?"), in: url, before: url.count) ?? url.count
    let pathEnd = FormWriter.find(UInt8(ascii: "#"), in: url, before: mark) ?? mark
    writer.copy(UnsafeBufferPointer(rebasing: url[..<pathEnd]))
    guard pathEnd == mark, mark < url.count else { return writer.count }
    writer.append(UInt8(ascii: "?"))
    if text[1] == UInt8(ascii: "~") {
      withUnsafeTemporaryAllocation(of: Parameter.self, capacity: (url.count - mark) / 2 + 1) { places in
        var count = 0
        writeParameters(of: url, from: mark + 1, by: text, to: &writer) { parameter in
          places.initializeElement(at: count, to: parameter)
          count += 1
        }
        sort(UnsafeMutableBufferPointer(rebasing: places[..<count]), in: writer)
      }
    } else {
      writeParameters(of: url, from: mark + 1, by: text, to: &writer) { _ in }
    }
    // Without the last `&`, or the `?`.
    return writer.count - 1
  }

  /// A parameter in a buffer: where its name begins and ends, and the end of its `&`.
  private struct Parameter {
    var start: Int
    var nameEnd: Int
    var end: Int
  }

  /// Writes the parameters that count, each with a `&` at its end.
  @inline(__always)
  private static func writeParameters(
    of url: UnsafeBufferPointer<UInt8>, from start: Int, by text: UnsafeBufferPointer<UInt8>,
    to writer: inout FormWriter, _ body: (Parameter) -> Void
  ) {
    var at = start
    while at < url.count, url[at] != UInt8(ascii: "#") {
      if url[at] == UInt8(ascii: "&") {
        at += 1
        continue
      }
      let start = writer.count
      at = writer.write(.name, of: url, from: at)
      let nameEnd = writer.count
      guard isCounted(writer.buffer, start, nameEnd, by: text) else {
        writer.count = start
        while at < url.count, url[at] != UInt8(ascii: "&"), url[at] != UInt8(ascii: "#") { at += 1 }
        continue
      }
      writer.append(UInt8(ascii: "="))
      if at < url.count, url[at] == UInt8(ascii: "=") { at = writer.write(.value, of: url, from: at + 1) }
      writer.append(UInt8(ascii: "&"))
      body(Parameter(start: start, nameEnd: nameEnd, end: writer.count))
    }
  }

  /// Whether parameters of a name in a buffer count. The name and the names in the text have one spelling, without `&`.
  private static func isCounted(
    _ buffer: UnsafeMutableBufferPointer<UInt8>, _ start: Int, _ end: Int, by text: UnsafeBufferPointer<UInt8>
  ) -> Bool {
    let countsNamed = text[0] == UInt8(ascii: "+")
    var at = 2
    while at < text.count {
      // The `&` after each name ends the comparison before the text ends.
      var index = start
      while index < end, text[at] == buffer[index] {
        at += 1
        index += 1
      }
      if index == end, text[at] == UInt8(ascii: "&") { return countsNamed }
      while text[at] != UInt8(ascii: "&") { at += 1 }
      at += 1
    }
    return !countsNamed
  }

  /// Sorts the parameters that were written last by name.
  private static func sort(_ parameters: UnsafeMutableBufferPointer<Parameter>, in written: FormWriter) {
    let buffer = written.buffer
    var parameters = parameters
    let isSorted = parameters.indices.dropFirst().allSatisfy {
      !comesBefore(parameters[$0], parameters[$0 - 1], in: buffer)
    }
    guard !isSorted, let start = parameters.first?.start else { return }
    parameters.sort { left, right in
      if comesBefore(left, right, in: buffer) { return true }
      return left.start < right.start && !comesBefore(right, left, in: buffer)
    }
    withUnsafeTemporaryAllocation(of: UInt8.self, capacity: written.count - start) { sorted in
      var writer = FormWriter(buffer: sorted)
      for parameter in parameters {
        writer.copy(UnsafeBufferPointer(rebasing: buffer[parameter.start..<parameter.end]))
      }
      _ = UnsafeMutableBufferPointer(rebasing: buffer[start...]).update(
        fromContentsOf: UnsafeMutableBufferPointer(rebasing: sorted[..<writer.count]))
    }
  }

  /// Whether the bytes of a parameter's name come before those of another.
  private static func comesBefore(
    _ left: Parameter, _ right: Parameter, in buffer: UnsafeMutableBufferPointer<UInt8>
  ) -> Bool {
    let (leftCount, rightCount) = (left.nameEnd - left.start, right.nameEnd - right.start)
    for index in 0..<min(leftCount, rightCount) {
      let (leftByte, rightByte) = (buffer[left.start + index], buffer[right.start + index])
      if leftByte != rightByte { return leftByte < rightByte }
    }
    return leftCount < rightCount
  }
}
