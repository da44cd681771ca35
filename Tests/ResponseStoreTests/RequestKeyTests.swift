import CacheModel
import Foundation
import ResponseStore
import Testing

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
      ("http://ex%61mple.test/%61", "http://example.test/%61"), ("http://EX%41MPLE%2etest/", "http://example.test/"),
      ("http://u@ex%61mple.test/", "http://example.test/"), ("http://xn--BCHER-kva.test/", "http://b\u{fc}cher.test/"),
      ("http://B%C3%9CCHER.test/", "http://xn--bcher-kva.test/"),
      ("http://bu\u{308}cher.test/", "http://b\u{fc}cher.test"),
      ("http://a\u{3002}example/", "http://a.example/"), ("http://\u{ff11}27.0.0.1/", "http://127.0.0.1/"),
      ("http://127.0.0%2E1/", "http://127.0.0.1/"), ("http://a.example:0080/", "http://a.example/"),
      ("http://a.example/%d8%af?q=%e2%82%ac", "http://a.example/%D8%AF?q=%E2%82%AC"),
      ("http://a.example/%25%7eb%2fc", "http://a.example/%25%7Eb%2Fc"), ("data:,%c3%bc", "data:,%C3%BC"),
      ("https://a.example:000443/", "https://a.example/"), ("http://a.example:008080/", "http://a.example:8080/"),
      ("http://a.example:00/", "http://a.example:0/"), ("http://[0:0:0:0:0:0:0:1]/", "http://[::1]/"),
      ("http://[2001:DB8:0::0:1]:080/", "http://[2001:db8::1]/"),
    ])
  func same(left: String, right: String) throws {
    #expect(try #require(makeKey(left)) == #require(makeKey(right)))
  }

  @Test(
    "URLs that may name different resources have different keys",
    arguments: [
      ("http://a.example/?user=1", "http://a.example/?user=2"), ("http://a.example/A", "http://a.example/a"),
      ("http://a.example/%7Ea", "http://a.example/~a"), ("http://a.example/%d", "http://a.example/%D"),
      ("http://a.example/%dz", "http://a.example/%Dz"), ("http://a.example/%%d8", "http://a.example/%%D"),
      ("http://a.example/d8", "http://a.example/D8"), ("http://a.example/%31d8", "http://a.example/%31D8"),
      ("http://a.example/x", "https://a.example/x"), ("http://a.example/", "http://a.example:8080/"),
      ("http://a.example/%7Ea", "http://a.example/~a"), ("http://a.example/x", "http://a.example/x/"),
      ("http://a.example/x", "http://a.example/x?"), ("http://a.example/", "http://a.example./"),
      ("http://a.example:8080/", "http://a.example:808/"), ("http://7f3a/", "http://7f3b/"),
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
      "http://@@@/", "http://a b/", "http://a:b:c/", "http://[::1/", "http://]/",
      "http://a.example:99999999999999999999/",
      "http://a.example:65536/", "http://a.example:8a/", "http://a.example:+80/", "http://a%2fb/", "http://a%00b/",
      "http://a%40b/", "http://a%3A80/", "http://ex%2561mple.test/", "http://%zz/", "http://a%f/", "http://a%ff.test/",
      "http://a,b/", "http://*.example/", "http://a\u{200d}b.test/", "http://127.1/", "http://0x7f.1/",
      "http://0177.0.0.1/", "http://2130706433/", "http://127.0.0.1./", "http://%31/", "http://[fe80::1%25lo]/",
      "http://[v1.a]/", "http://[]/", "http://[127.0.0.1]/",
    ])
  func none(url: String) {
    #expect(makeKey(url) == nil)
  }

  @Test(
    "Hostile text neither traps nor is changed after the host",
    arguments: [
      "http://a.example/\r\nSet-Cookie: x", "http://a.example/é\u{202e}", "x://a b/", "x://a:b:c/", "x://[::1/",
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

  @Test(
    "A key is compared with the text of a URL",
    arguments: [
      ("http://example.com/a?b", "http://example.com/a?b", true),
      ("http://example.com:80/a", "http://example.com:80/a", false),
      ("http://example.com:8080/a", "http://example.com:8080/a", true),
      ("HTTP://example.com/", "HTTP://example.com/", false), ("http://example.com", "http://example.com", false),
      ("http://example.com/a#f", "http://example.com/a#f", false),
      ("http://u:p@example.com/", "http://u:p@example.com/", false), ("data:text/plain,x", "data:text/plain,x", true),
      ("https://[::1]:8443/x", "https://[::1]:8443/x", true), ("http://example.com/a", "http://example.com/ab", false),
      ("http://example.com/ab", "http://example.com/a", false),
      ("http://example.com/%d8?%af", "http://example.com/%D8?%AF", true),
      ("http://example.com/%D8?%AF", "http://example.com/%d8?%Af", true),
      ("http://example.com/%d8", "http://example.com/%D9", false),
      ("http://example.com/%d8d", "http://example.com/%D8D", false),
      ("http://example.com/%dz", "http://example.com/%Dz", false),
      ("http://example.com/a%", "http://example.com/a%", true),
      ("http://example.com/%d", "http://example.com/%D", false),
    ])
  func text(_ made: String, _ asked: String, _ isSame: Bool) throws {
    let key = try #require(makeKey(made))
    #expect(key.isMade(of: asked) == isSame && key.isMade(of: key.urlString))
  }

  @Test("Only the path and query are compared without the case of percent-encoding's digits")
  func digitsElsewhere() throws {
    let url = "http://a.example/"
    #expect(makeKey(url, partition: "%d8") != makeKey(url, partition: "%D8"))
    #expect(makeKey(url, method: "%d8") != makeKey(url, method: "%D8"))
    let key = try #require(makeKey("http://a.example/%d8", method: "%d8", partition: "%d8"))
    #expect(key.urlString == "http://a.example/%D8" && key.method == "%d8" && key.partition == "%d8")
  }

  @Test("Keys of a host are adjacent in the order of keys, and so are those of a path")
  func order() throws {
    let urls = [
      "http://a.example/", "http://a.example/a", "http://a.example/a/1", "http://a.example/a/2", "http://a.example/b",
      "http://a.example:8080/", "https://a.example/", "http://a.example.org/", "http://b.example/",
    ]
    let keys = try urls.map { try #require(makeKey($0)).bytes }
    let sorted = keys.shuffled().sorted { $0.lexicographicallyPrecedes($1) }
    for prefix in [RequestKey.prefix(host: "a.example")!, RequestKey.prefix(url: URL(string: "http://a.example/a")!)!] {
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

  @Test("A host covers the URLs that reach it, in all spellings of both")
  func hosts() throws {
    let spellings = [
      ["A.EXAMPLE", "a.example", "%61.example"], ["::1", "[::1]", "0:0::1"],
      ["b\u{fc}cher.test", "B%C3%BCcher.test", "xn--bcher-kva.test"], ["127.0.0.1", "127.0.0%2e1"],
    ]
    for names in spellings {
      for (host, other) in names.flatMap({ host in names.map { (host, $0) } }) {
        let name = other.contains(":") && !other.hasPrefix("[") ? "[\(other)]" : other
        for url in ["http://\(name)", "https://u:p@\(name):08080/x"] {
          #expect(
            try #require(makeKey(url)).bytes.starts(with: #require(RequestKey.prefix(host: host))), "\(host) \(url)")
        }
      }
    }
    let prefix = try #require(RequestKey.prefix(host: "a.example"))
    #expect(try !#require(makeKey("http://sub.a.example/")).bytes.starts(with: prefix))
  }

  @Test(
    "Text that is not one host alone is no host",
    arguments: [
      "", " ", "a.example:80", "a.example:", "http://a.example", "a.example/", "u@a.example", "a.example,b.example",
      "a.example b.example", "*.example", "[::1", "::1]", "[::1]:80", "[a.example]", "a?b", "a#b", "a%2fb", "a\0",
      "127.1", ".", ".a.example", "a..example", "a.example..",
      "a.example\n", "[::1%lo]", "::1%lo", "[]",
    ])
  func noHost(text: String) {
    #expect(RequestKey.prefix(host: text) == nil)
    #expect(RemovalScope.host(validating: text) == nil)
    guard let key = makeKey("http://a.example/") else { return }
    #expect(!RemovalScope.host(text).mayCover(key))
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
