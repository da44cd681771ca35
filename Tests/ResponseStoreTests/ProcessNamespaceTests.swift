import Foundation
import Glibc
import Testing

@testable import ResponseStore

@Suite("PID namespaces")
struct ProcessNamespaceTests {
  private func expectInChild(_ code: StoreError.Code?, _ directory: String) async {
    let isRefused = code != nil
    await #expect(processExitsWith: .success) { [directory = directory as String, isRefused = isRefused as Bool] in
      for options in [quietOptions(capacity: 16 << 20), .existing] {
        do throws(StoreError) {
          try ResponseStore.open(directory: directory, options: options).close()
          if isRefused { exit(2) }
        } catch {
          guard isRefused, error.code == .otherProcessNamespace, error.reason.contains("PID namespace") else { exit(3) }
        }
      }
    }
  }

  // Issue 14, item 19.
  @Test("A directory that processes of another PID namespace have open is refused, and is free when they are gone")
  func refused() async throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    await expectInChild(nil, fixture.directory)
    let flag = try #require(fixture.store.storeDirectory.condemnedFlag)
    let own = flag.processNamespace
    #expect(own != 0)
    // As if this process were in another one.
    flag.processNamespace = own + 1
    await expectInChild(.otherProcessNamespace, fixture.directory)
    #expect(fixture.body("http://a.example/") != nil)
    // What those who are gone have noted means nothing.
    try fixture.reopen()
    #expect(fixture.store.storeDirectory.condemnedFlag?.processNamespace == own)
    await expectInChild(nil, fixture.directory)
    #expect(fixture.body("http://a.example/") != nil)
  }
}
