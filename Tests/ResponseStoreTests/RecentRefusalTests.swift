import Foundation
import Glibc
import HTTPCaching
import Testing

@testable import CacheActivity
@testable import ResponseStore

@Suite("The last refusals to store a response")
struct RecentRefusalTests {
  private func last(_ fixture: StoreFixture, _ url: String) -> StorageRefusal? {
    fixture.store.activity.file?.lastRefusal(of: fixture.key(url))
  }

  @Test("The last refusal of a URL replaces the one before, and outlives the store")
  func replacement() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
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
    defer { fixture.finish() }
    let urls = (0..<5000).map { "http://secret.example/\($0)" }
    for url in urls { fixture.store.activity.countRefusal("no-store", of: fixture.key(url)) }
    let found = urls.filter { last(fixture, $0) != nil }
    // A set is full after 8 refusals, so nearly all 640 words are in use.
    #expect((600...641).contains(found.count))
    #expect(last(fixture, urls[4999])?.rule == "no-store")
    let bytes = try #require(FileManager.default.contents(atPath: fixture.path(ActivityFile.name)))
    #expect(bytes.count == ActivityLayout.byteCount)
    #expect(!String(decoding: bytes, as: UTF8.self).contains("secret.example"))
  }

  @Test("Another file has other digests")
  func seed() throws {
    let fixtures = [try StoreFixture(), try StoreFixture()]
    defer { for fixture in fixtures { fixture.finish() } }
    let tables = try fixtures.map { fixture -> Data in
      fixture.store.activity.countRefusal("no-store", of: fixture.key("http://a.example/"))
      let bytes = try #require(FileManager.default.contents(atPath: fixture.path(ActivityFile.name)))
      return bytes.dropFirst(ActivityLayout.recentRefusalsOffset)
    }
    #expect(tables.allSatisfy { $0.contains { $0 != 0 } })
    #expect(tables[0] != tables[1])
  }

  @Test("Refusals by rules beyond the slots are counted, and not remembered")
  func manyRules() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<200 {
      fixture.store.activity.countRefusal("rule-\(number)", of: fixture.key("http://a.example/\(number)"))
    }
    #expect(last(fixture, "http://a.example/127")?.rule == "rule-127")
    #expect(last(fixture, "http://a.example/128") == nil)
    #expect(fixture.store.directoryStatistics?.storageRefusals["rule-127"] == 73)
  }

  @Test("A damaged table gives no rule that no process has used")
  func damage() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.activity.countRefusal("no-store", of: fixture.key("http://a.example/"))
    let descriptor = open(fixture.path(ActivityFile.name), O_RDWR)
    var random = SystemRandomNumberGenerator()
    let noise = (0..<640).map { _ in random.next() | 1 }
    #expect(pwrite(descriptor, noise, noise.count * 8, off_t(ActivityLayout.recentRefusalsOffset)) == noise.count * 8)
    close(descriptor)
    for number in 0..<1000 {
      let refusal = last(fixture, "http://a.example/\(number)")
      #expect(refusal == nil || refusal?.rule == "no-store")
    }
  }
}
