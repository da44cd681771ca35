import Foundation
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("The README's example")
struct ReadmeTests {
  @Test("is the text of the file that is compiled here")
  func matchesItsSource() throws {
    let tests = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
    let root = tests.deletingLastPathComponent().deletingLastPathComponent()
    let readme = try String(contentsOf: root.appendingPathComponent("README.md"), encoding: .utf8)
    let source = try String(contentsOf: tests.appendingPathComponent("ReadmeExample.swift"), encoding: .utf8)
    let start = try #require(readme.range(of: "```swift\n"), "README.md has no Swift example")
    let end = try #require(readme[start.upperBound...].range(of: "```"))
    #expect(
      readme[start.upperBound..<end.lowerBound] == source,
      "Change README.md and ReadmeExample.swift together")
  }

  // In a process of its own: the example changes what all sessions of its process share.
  @Test("runs, and fetches once")
  func runs() async {
    await #expect(processExitsWith: .success) {
      let directory = FileManager.default.temporaryDirectory.appendingPathComponent("readme-\(UUID().uuidString)")
      defer { try? FileManager.default.removeItem(at: directory) }  // A leftover in the temporary folder does no harm.
      let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello") }
      try await fetch(origin.url("/page"), cachingIn: directory)
      #expect(origin.requestCount == 1)
      origin.stop()
    }
  }
}
