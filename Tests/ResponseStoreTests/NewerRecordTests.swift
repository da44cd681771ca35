import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import Testing

/// A write that is removed or dropped deletes the record that it would have replaced, so that no older response
/// returns. A response that another process has stored since stays.
@Suite("Newer responses of other processes", .endsFixtures)
struct NewerRecordTests {
  private static let url = "http://a.example/"

  /// The reason why the write of this process is not stored.
  enum Hindrance: CaseIterable, Codable, Sendable {
    case earlierRemoval, laterRemovalOfGroup, newerResponseThatIsNotStored
  }

  @Test("A write that is not stored deletes no newer response of another process", arguments: Hindrance.allCases)
  func newer(hindrance: Hindrance) async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url, body: Data("oldest".utf8)))
    fixture.drain()
    fixture.clock.advance(by: 1)
    var response = fixture.response(Self.url, body: Data("older".utf8))
    response.fields = HeaderFields([("Cache-Groups", "\"g\"")])
    if hindrance == .newerResponseThatIsNotStored {
      fixture.store.discard(response.response, for: response.key, by: nil)
    } else {
      fixture.store.store(response)
    }
    await #expect(processExitsWith: .success) {
      [directory = fixture.directory as String, hindrance = hindrance as Hindrance, now = fixture.clock.now as Date] in
      var options = quietOptions(capacity: 16 << 20)
      options.clock = { now + 1 }
      let store = try ResponseStore.open(directory: directory, options: options)
      if hindrance == .earlierRemoval { store.remove(RequestKey(urlString: Self.url)!) }
      store.store(childResponse(Self.url, body: Data("newest".utf8)))
      try store.flush()
      if hindrance == .laterRemovalOfGroup {
        guard let scope = RemovalScope.group("g", ofOrigin: URL(string: Self.url)!) else { exit(2) }
        store.remove(scope)
      }
      store.close()
    }
    fixture.drain()
    #expect(fixture.body(Self.url) == Data("newest".utf8))
    #expect(fixture.store.entryCount == 1)
  }
}
