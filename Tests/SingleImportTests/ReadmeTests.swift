import Foundation
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("README example")
struct ReadmeTests {
  @Test("The README contains the compiled example")
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

  // In a child process, because the example changes the shared session and cache.
  @Test("The example runs and fetches once")
  func runs() async {
    await #expect(processExitsWith: .success) {
      let directory = FileManager.default.temporaryDirectory.appendingPathComponent("readme-\(UUID().uuidString)")
      defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
      let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello") }
      try await fetch(origin.url("/page"), cachingIn: directory)
      #expect(origin.requestCount == 1)
      origin.stop()
    }
  }
}
