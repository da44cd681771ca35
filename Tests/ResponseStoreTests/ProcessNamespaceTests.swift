import Foundation
import Glibc
import ResponseStore
import Testing

@Suite("PID namespaces", .endsFixtures)
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

  @Test("A directory in use in another PID namespace is rejected until its processes have ended")
  func refused() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    await expectInChild(nil, fixture.directory)
    let page = StatusPage(directory: fixture.directory)
    let own = page[StatusPage.processNamespace]
    #expect(own != 0)
    // Pretend that this process is in another namespace.
    page[StatusPage.processNamespace] = own + 1
    await expectInChild(.otherProcessNamespace, fixture.directory)
    #expect(fixture.body("http://a.example/") != nil)
    // The records of processes that have ended are ignored.
    try fixture.reopen()
    #expect(page[StatusPage.processNamespace] == own)
    await expectInChild(nil, fixture.directory)
    #expect(fixture.body("http://a.example/") != nil)
  }
}
