import Foundation
import Testing

// Input in pieces of any size.
@testable import urlcache

@Suite("The input of warm")
struct WarmInputTests {
  /// A document with strings that look like structure, and with a large body before its second request.
  private static let document = """
    {"log": {"version": "1.2", "request": {"no": 1}, "entries": [
      {"time": 1, "request": {"method": "GET", "url": "http://a.example/1", "headers": [], "postData": {"text": "}]"}},
       "response": {"content": {"text": "\\\\\\"}]}{\\"request\\": \(String(repeating: "x", count: 100_000))", "size": 2}}},
      {"request": {"method": "POST", "url": "http://a.example/\\u0032", "headers": [{"name": "A", "value": "b"}]},
       "other": {"request": {"method": "GET"}}}
    ], "pages": [{"entries": [{"request": {}}]}]}}
    """

  private func urls(pieceByteCount: Int, _ text: String) throws -> [String] {
    var reader = HARReader(name: "Input")
    var urls: [String] = []
    let data = Data(text.utf8)
    for start in stride(from: 0, to: data.count, by: pieceByteCount) {
      try reader.append(data[start..<min(start + pieceByteCount, data.count)]) { urls.append("\($0.method) \($0.url)") }
    }
    try reader.end()
    return urls
  }

  @Test("The requests of a HAR file are found in pieces of any size", arguments: [1, 7, 4096, 1 << 20])
  func pieces(byteCount: Int) throws {
    #expect(
      try urls(pieceByteCount: byteCount, Self.document) == ["GET http://a.example/1", "POST http://a.example/2"])
  }

  @Test("A HAR file that is cut at any byte is an error")
  func cut() throws {
    let text = """
      {"log": {"entries": [{"request": {"method": "GET", "url": "http://a.example/", "headers": []}}], "pages": []}}
      """
    #expect(try urls(pieceByteCount: 10, text) == ["GET http://a.example/"])
    for count in 1..<text.utf8.count {
      #expect(throws: ToolError.self, "\(count)") { try urls(pieceByteCount: 10, String(text.prefix(count))) }
    }
  }

  @Test(
    "Text that is no HAR file is an error",
    arguments: [
      "{\"log\": [}", "{]", "{\"log\": {\"entries\": {}}}", "{\"log\": {\"entries\": []}} {", "{} x",
      "{\"log\": {\"entries\": [{\"request\": {\"method\": 5, \"url\": \"u\", \"headers\": []}}]}}",
      String(repeating: "{\"a\":", count: 300),
    ])
  func noHAR(text: String) {
    #expect(throws: ToolError.self) { try urls(pieceByteCount: 100, text) }
  }

  @Test("A request of more than 1 MiB is an error, and a body of any size is not")
  func largeRequest() {
    let long = String(repeating: "x", count: HARReader.maximumRequestByteCount)
    let text = "{\"log\": {\"entries\": [{\"request\": {\"method\": \"GET\", \"url\": \"\(long)"
    #expect(throws: ToolError.self) { try urls(pieceByteCount: 1 << 16, text) }
  }

  @Test("More requests than fit in memory are an error")
  func limit() throws {
    let file = FileManager.default.temporaryDirectory.appendingPathComponent("urls-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: file) }
    try Data((0..<11).map { "http://a.example/\($0)\n" }.joined().utf8).write(to: file)
    func list(_ limit: Int) throws -> WarmList {
      try WarmList(WarmInput(file: file.path, name: "Input"), name: "Input", maximumRequestCount: limit)
    }
    #expect(try list(11).requests.count == 11)
    let error = #expect(throws: ToolError.self) { try list(10) }
    #expect(error?.description == "Input has more than 10 URLs. Divide it.")
  }

  @Test("A gzip file is recognized and decompressed, and other files are unchanged, in pieces of any size")
  func decompressor() throws {
    let text = "http://a.example/"
    // The gzip file of this text, as `printf | gzip -n | base64` makes it.
    let compressed = try #require(Data(base64Encoded: "H4sIAAAAAAAAA8soKSmw0tdP1EutSMwtyEnVBwAk99x7EQAAAA=="))
    let files = [(compressed, text), (Data(text.utf8), text), (Data("h".utf8), "h"), (Data(), "")]
    for (file, content) in files {
      for byteCount in [1, 2, 3, 1000] {
        let decompressor = Decompressor(name: "Input")
        var found = Data()
        for start in stride(from: 0, to: file.count, by: byteCount) {
          decompressor.append(file[start..<min(start + byteCount, file.count)])
          while let piece = try decompressor.next() { found += piece }
        }
        found += try decompressor.end() ?? Data()
        #expect(String(decoding: found, as: UTF8.self) == content)
      }
    }
  }
}
