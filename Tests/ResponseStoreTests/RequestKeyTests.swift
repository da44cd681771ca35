import Foundation
import Testing

@testable import ResponseStore

@Suite("Request keys")
struct RequestKeyTests {
  private func makeKey(_ url: String, method: String = "GET", partition: String = "") -> RequestKey? {
    RequestKey(urlString: url, method: method, partition: partition)
  }

  @Test(
    "Equivalent spellings of a target have equal keys",
    arguments: [
      ("http://a.example", "http://a.example/"), ("HTTP://A.Example/", "http://a.example/"),
      ("http://a.example:80/", "http://a.example/"), ("https://a.example:443/x", "https://a.example/x"),
      ("http://a.example:/x", "http://a.example/x"), ("http://a.example/x#part", "http://a.example/x"),
      ("http://a.example?q", "http://a.example/?q"), ("http://[2001:DB8::1]/", "http://[2001:db8::1]:80/"),
      ("http://@a.example/", "http://a.example/"), ("http://a.example#f", "http://a.example/"),
      ("http://u:1@a.example/", "http://u:2@a.example/"), ("http://u@a.example/", "http://a.example/"),
    ])
  func same(left: String, right: String) throws {
    #expect(try #require(makeKey(left)) == #require(makeKey(right)))
  }

  @Test(
    "URLs that may name different resources have different keys",
    arguments: [
      ("http://a.example/?user=1", "http://a.example/?user=2"), ("http://a.example/A", "http://a.example/a"),
      ("http://a.example/x", "https://a.example/x"), ("http://a.example/", "http://a.example:8080/"),
      ("http://a.example/%7Ea", "http://a.example/~a"), ("http://a.example/x", "http://a.example/x/"),
      ("http://a.example/x", "http://a.example/x?"), ("http://a.example/", "http://a.example./"),
    ])
  func different(left: String, right: String) throws {
    #expect(try #require(makeKey(left)) != #require(makeKey(right)))
  }

  @Test("Keys with different methods or partitions differ, regardless of their characters")
  func methodAndPartition() {
    let url = "http://a.example/"
    let keys = [
      makeKey(url), makeKey(url, method: "HEAD"), makeKey(url, method: "get"), makeKey(url, partition: "a"),
      makeKey(url, partition: "GET"),
      makeKey(url, partition: "a\0b"), makeKey(url, partition: "a?b"), makeKey(url, partition: "a\u{fffd}b"),
      makeKey(url, method: "G\0ET"),
    ]
    #expect(Set(keys).count == keys.count)
    #expect(makeKey(url, partition: "a\0b")?.partition == "a\0b")
  }

  @Test(
    "A URL that is not an absolute URL with a host has no key",
    arguments: [
      "", "/relative", "relative", "//a.example/x", "http://", "http:///x", "http:", "http:a", "https://:443/",
      "http://u@/", "http://a.example/\0", ":x", "#", "?x:y", "1http://a.example/", "ht tp://a.example/", "/a:b",
      "http://@@@/",
    ])
  func none(url: String) {
    #expect(makeKey(url) == nil)
  }

  @Test(
    "Hostile text neither traps nor is changed after the host",
    arguments: [
      "http://a.example/\r\nSet-Cookie: x", "http://a.example/é\u{202e}", "http://a b/", "http://a:b:c/",
      "http://[::1/", "http://]/", "http://a.example:99999999999999999999/",
      "data:text/plain,hello", "mailto:someone", "file:///etc/passwd", "x-y.z+1:a?b#c",
    ])
  func hostile(url: String) throws {
    let key = try #require(makeKey(url))
    _ = key.description
    #expect(RequestKey(urlString: key.urlString) == key || url.contains("@"))
    #expect(RequestKey(storedBytes: key.bytes) == key)
  }

  @Test("Every byte of a long URL is part of the key")
  func long() throws {
    let path = String(repeating: "p/", count: 50_000)
    let one = try #require(makeKey("http://a.example/\(path)1"))
    let two = try #require(makeKey("http://a.example/\(path)2"))
    #expect(one != two)
    #expect(one.urlString.hasSuffix("1") && one.urlString.utf8.count == 100_018)
  }

  @Test("Keys of a host are adjacent in the order of keys, and so are those of a path")
  func order() throws {
    let urls = [
      "http://a.example/", "http://a.example/a", "http://a.example/a/1", "http://a.example/a/2", "http://a.example/b",
      "http://a.example:8080/", "https://a.example/", "http://a.example.org/", "http://b.example/",
    ]
    let keys = try urls.map { try #require(makeKey($0)).bytes }
    let sorted = keys.shuffled().sorted { $0.lexicographicallyPrecedes($1) }
    for prefix in [RequestKey.prefix(host: "a.example"), RequestKey.prefix(url: URL(string: "http://a.example/a")!)!] {
      let positions = sorted.indices.filter { sorted[$0].starts(with: prefix) }
      #expect(positions == Array(positions.first!...positions.last!))
    }
  }

  @Test("A prefix covers keys that begin with its characters, only on its origin")
  func prefixes() throws {
    func covers(_ prefix: String, _ url: String) throws -> Bool {
      let prefix = try #require(RequestKey.prefix(url: URL(string: prefix)!))
      return try #require(makeKey(url)).bytes.starts(with: prefix)
    }
    #expect(try covers("http://a.example", "http://a.example/x"))
    #expect(try covers("http://a.example/a", "http://a.example/ab"))
    #expect(try covers("http://a.example/a/", "http://a.example/a/b?c"))
    #expect(try covers("http://a.example/a?b", "http://a.example/a?bc"))
    #expect(try !covers("http://a.example/a/", "http://a.example/a"))
    #expect(try !covers("http://a.example/", "https://a.example/"))
    #expect(try !covers("http://a.example/", "http://a.example:8080/"))
    #expect(try !covers("http://a.example/", "http://a.example.org/"))
    #expect(RequestKey.prefix(url: URL(string: "relative")!) == nil)
  }

  @Test("A host is given as URL returns it")
  func hosts() throws {
    for (host, url) in [("A.EXAMPLE", "http://a.example/"), ("::1", "http://[::1]/"), ("[::1]", "http://[::1]:8080/")] {
      #expect(try #require(makeKey(url)).bytes.starts(with: RequestKey.prefix(host: host)))
    }
    #expect(try !#require(makeKey("http://sub.a.example/")).bytes.starts(with: RequestKey.prefix(host: "a.example")))
  }

  @Test("The description is the URL without user and fragment")
  func description() throws {
    for url in [
      "http://a.example/", "https://a.example/x?y=z", "http://a.example:8080/", "http://[::1]:8080/x",
      "data:text/plain,hello", "file:///etc/hosts",
    ] {
      #expect(try #require(makeKey(url)).description == url)
    }
    #expect(
      try #require(makeKey("http://user:secret@a.example/x#f", method: "HEAD")).description == "HEAD http://a.example/x"
    )
    #expect(try #require(makeKey("http://a.example/", partition: "p")).partition == "p")
    #expect(try #require(makeKey("http://A.example/")).host == "a.example")
  }
}
