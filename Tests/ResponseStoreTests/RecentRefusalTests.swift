import CacheActivity
import Foundation
import Glibc
import HTTPCaching
import ResponseStore
import Testing

@Suite("The last refusals to store a response", .endsFixtures)
struct RecentRefusalTests {
  private func last(_ fixture: StoreFixture, _ url: String) -> StorageRefusal? {
    fixture.store.activity.file?.lastRefusal(of: fixture.key(url))
  }

  @Test("The last refusal of a URL replaces the one before, and outlives the store")
  func replacement() throws {
    let fixture = try StoreFixture()
    let (url, other) = ("http://a.example/page?token=secret", "http://a.example/other")
    fixture.store.activity.countRefusal("no-store", of: fixture.key(url))
    fixture.store.activity.countRefusal("vary-star", of: fixture.key(url))
    fixture.store.activity.countRefusal("no-ground", of: fixture.key(other))
    fixture.store.activity.noteRefusal("memory-only", of: fixture.key(other))
    try fixture.reopen()
    let refusal = try #require(last(fixture, url))
    #expect(refusal.rule == "vary-star")
    #expect(abs(refusal.time.timeIntervalSinceNow) < 600)
    #expect(last(fixture, other)?.rule == "memory-only")
    #expect(last(fixture, "http://a.example/third") == nil)
    // Another partition is another key.
    #expect(fixture.store.activity.file?.lastRefusal(of: fixture.key(url, partition: "p")) == nil)
    // A response that is kept in memory is not refused.
    #expect(
      fixture.store.directoryStatistics?.storageRefusals == ["no-store": 1, "vary-star": 1, "no-ground": 1])
  }

  @Test("Of many refusals, the table has the newest ones, and no URL is in its file")
  func bound() throws {
    let fixture = try StoreFixture()
    let urls = (0..<5000).map { "http://secret.example/\($0)" }
    for url in urls { fixture.store.activity.countRefusal("no-store", of: fixture.key(url)) }
    let found = urls.filter { last(fixture, $0) != nil }
    // A set is full after 8 refusals, so nearly all 640 words are in use.
    #expect((600...641).contains(found.count))
    #expect(last(fixture, urls[4999])?.rule == "no-store")
    let bytes = try #require(FileManager.default.contents(atPath: fixture.path(ActivityFile.name)))
    #expect(!String(decoding: bytes, as: UTF8.self).contains("secret.example"))
  }
}
