import Foundation
import LoopbackOrigin
import Testing

@Suite("File origin")
final class FileOriginTests {
  private let folder: URL
  private let secret: URL

  init() throws {
    let top = FileManager.default.temporaryDirectory.appendingPathComponent("file-origin-\(UUID().uuidString)")
    folder = top.appendingPathComponent("served")
    secret = top.appendingPathComponent("secret.txt")
    try FileManager.default.createDirectory(
      at: folder.appendingPathComponent("sub folder"), withIntermediateDirectories: true)
    try Data("secret".utf8).write(to: secret)
    try Data("hello".utf8).write(to: folder.appendingPathComponent("a.txt"))
    try Data("<p>".utf8).write(to: folder.appendingPathComponent("sub folder/ü%.html"))
    try FileManager.default.createSymbolicLink(
      at: folder.appendingPathComponent("out"), withDestinationURL: secret)
  }

  deinit {
    // Ignore failures: the system cleans its temporary directory.
    try? FileManager.default.removeItem(at: folder.deletingLastPathComponent())
  }

  @Test("Files are served with a type, a length and Cache-Control")
  func servesFiles() throws {
    let origin = try FileOrigin(folder: folder.path) { path in path == "a.txt" ? 7 : 8 }
    defer { origin.stop() }
    #expect(try origin.files() == ["a.txt", "sub folder/ü%.html"])
    #expect(try origin.files(byteCounts: 4...9) == ["a.txt"])

    let response = RawClient.exchange(origin.origin, "GET", "/a.txt")
    #expect(response.hasPrefix("HTTP/1.1 200 OK\r\n"))
    #expect(response.contains("\r\nCache-Control: max-age=7\r\n"))
    #expect(response.contains("\r\nContent-Type: text/plain\r\n"))
    #expect(response.contains("\r\nContent-Length: 5\r\n"))
    #expect(response.hasSuffix("\r\n\r\nhello"))
    let head = RawClient.exchange(origin.origin, "HEAD", "/a.txt")
    #expect(head.contains("\r\nContent-Length: 5\r\n") && head.hasSuffix("\r\n\r\n"))

    let url = origin.url(forFile: "sub folder/ü%.html")
    #expect(url.absoluteString.hasSuffix("/sub%20folder/%C3%BC%25.html"))
    let other = RawClient.exchange(origin.origin, "GET", "/sub%20folder/%C3%BC%25.html")
    #expect(other.contains("\r\nContent-Type: text/html\r\n") && other.contains("max-age=8") && other.hasSuffix("<p>"))
  }

  @Test("Conditional requests are evaluated, and a changed file has another ETag")
  func revalidates() throws {
    let origin = try FileOrigin(folder: folder.path)
    defer { origin.stop() }
    let file = folder.appendingPathComponent("a.txt")
    try FileManager.default.setAttributes(
      [.modificationDate: Date(timeIntervalSince1970: 784_111_777)], ofItemAtPath: file.path)
    let first = RawClient.exchange(origin.origin, "GET", "/a.txt")
    #expect(first.contains("\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n"))
    let tag = try #require(first.split(separator: "\r\n").first { $0.hasPrefix("ETag: ") }).dropFirst(6)
    #expect(tag.hasPrefix("\"") && tag.hasSuffix("\""))

    for (condition, status) in [
      ("If-None-Match: \(tag)", 304), ("If-None-Match: \"x\", W/\(tag)", 304), ("If-None-Match: *", 304),
      ("If-None-Match: \"x\"", 200), ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 304),
      ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT", 200), ("If-Modified-Since: yesterday", 200),
      ("If-None-Match: \"x\"\r\nIf-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT", 200),
    ] {
      let client = RawClient(origin.origin)
      client.send("GET /a.txt HTTP/1.1\r\nConnection: close\r\n\(condition)\r\n\r\n")
      let response = client.readToEnd().text
      #expect(response.hasPrefix("HTTP/1.1 \(status) "), "\(condition)")
      #expect(response.contains("\r\nETag: \(tag)\r\n"))
      #expect(response.hasSuffix(status == 304 ? "\r\n\r\n" : "hello"))
    }

    try Data("hallo".utf8).write(to: file)
    try FileManager.default.setAttributes(
      [.modificationDate: Date(timeIntervalSince1970: 784_111_777)], ofItemAtPath: file.path)
    #expect(!RawClient.exchange(origin.origin, "GET", "/a.txt").contains("ETag: \(tag)\r\n"), "same size, same time")
  }

  @Test(
    "Targets outside the folder, and targets that are no file, get a 404",
    arguments: [
      "/absent", "/", "/sub%20folder", "/../secret.txt", "/%2e%2e/secret.txt", "/sub%20folder/..%2F..%2Fsecret.txt",
      "/out", "//etc/passwd", "/a.txt%00", "/%zz", "/./a.txt", "*",
    ])
  func findsNothing(_ target: String) throws {
    let origin = try FileOrigin(folder: folder.path)
    defer { origin.stop() }
    let response = RawClient.exchange(origin.origin, "GET", target)
    #expect(response.hasPrefix("HTTP/1.1 404 Not Found\r\n"))
    #expect(!response.contains("secret\n") && !response.hasSuffix("secret"))
  }

  @Test("Other methods get a 405, and a missing folder is an error")
  func refusesOtherMethodsAndMissingFolders() throws {
    let origin = try FileOrigin(folder: folder.path)
    defer { origin.stop() }
    #expect(RawClient.exchange(origin.origin, "DELETE", "/a.txt").hasPrefix("HTTP/1.1 405 "))
    let error = #expect(throws: OriginError.self) { try FileOrigin(folder: "/absent/folder") }
    #expect(error?.description.contains("No such file or directory") == true)
  }
}
