import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Tests of a whole process, each in a child process.
@Suite("Process")
struct ProcessTests {
  @Test("A process that exits without a flush has stored its responses")
  func exitWithoutFlush() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("cache-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }
    setenv("LMDBURLCACHE_TEST_DIRECTORY", directory.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_DIRECTORY") }
    await #expect(processExitsWith: .success) {
      let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_DIRECTORY"]!
      let cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: path), memoryCapacity: 1 << 20, diskCapacity: 8 << 20)
      for number in 0..<100 {
        let url = URL(string: "http://example.com/\(number)")!
        cache.storeCachedResponse(cached(url, "\(number)"), for: URLRequest(url: url))
      }
      // The cache is still in use.
      withExtendedLifetime(cache) { exit(0) }
    }
    let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 8 << 20)
    let found = (0..<100).count { cache.isCached(URL(string: "http://example.com/\($0)")!) }
    #expect(found == 100)
    #expect(cache.core.store?.checkInvariants() == [])
  }

  @Test("URLSession.shared caches after installShared, and URLCache.shared is the cache")
  func installShared() async {
    await #expect(processExitsWith: .success) {
      let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: "/nonexistent")
      LMDBURLCache.installShared(cache)
      LMDBURLCache.installShared(cache)
      precondition(URLCache.shared === cache)
      let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "a") }
      for _ in 0..<3 {
        let data = try await URLSession.shared.data(from: origin.url("/a")).0
        precondition(data.text == "a")
      }
      precondition(origin.requestCount == 1)
      // A session with the default configuration uses the shared cache, but does not cache by itself.
      precondition(URLSessionConfiguration.default.urlCache === cache)
      _ = try await URLSession(configuration: .default).data(from: origin.url("/b"))
      var post = URLRequest(url: origin.url("/a"))
      post.httpMethod = "POST"
      post.httpBody = Data("x".utf8)
      _ = try await URLSession.shared.data(for: post)
      precondition(!cache.isCached(origin.url("/a")))
      exit(0)
    }
  }

  @Test("installShared logs a line if the process has created a URLSession before", arguments: [true, false])
  func installSharedTooLate(_ usesShared: Bool) async {
    await #expect(processExitsWith: .success) { [usesShared] in
      let logged = LogLines()
      var options = LMDBURLCache.Options()
      options.log = { logged.append($0) }
      let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
      let cache = try LMDBURLCache(
        directory: directory, memoryCapacity: 1 << 20, diskCapacity: 0, options: options)
      let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "a") }
      let session = usesShared ? URLSession.shared : URLSession(configuration: .ephemeral)
      LMDBURLCache.installShared(cache)
      precondition(logged.all.count == 1, "\(logged.all)")
      precondition(logged.all[0].contains("Call installShared before anything creates a URLSession"))
      // The line is true.
      for _ in 0..<2 { _ = try await URLSession.shared.data(from: origin.url("/a")) }
      precondition(origin.requestCount == 2)
      withExtendedLifetime(session) { exit(0) }
    }
  }

  @Test("installShared logs nothing if it comes first")
  func installSharedInTime() async {
    await #expect(processExitsWith: .success) {
      let logged = LogLines()
      var options = LMDBURLCache.Options()
      options.log = { logged.append($0) }
      let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
      let cache = try LMDBURLCache(
        directory: directory, memoryCapacity: 1 << 20, diskCapacity: 0, options: options)
      let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "a") }
      for _ in 0..<2 { LMDBURLCache.installShared(cache) }
      for _ in 0..<2 { _ = try await URLSession.shared.data(from: origin.url("/a")) }
      precondition(origin.requestCount == 1)
      precondition(logged.all == [], "\(logged.all)")
      // Its loads use the cache's transport.
      precondition(!URLSession.shared.configuration.hasOwnProtocolClasses)
      exit(0)
    }
  }

  @Test("The default directory follows XDG_CACHE_HOME and HOME, and a relative path is below it")
  func paths() async throws {
    let home = FileManager.default.temporaryDirectory.appendingPathComponent("home-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: home, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(at: home) }
    setenv("LMDBURLCACHE_TEST_HOME", home.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_HOME") }
    await #expect(processExitsWith: .success) {
      let home = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_HOME"]!
      setenv("XDG_CACHE_HOME", home + "/xdg", 1)
      setenv("HOME", home, 1)
      precondition(LMDBURLCache.defaultCachePath == home + "/xdg/LMDBURLCache", LMDBURLCache.defaultCachePath)
      for (path, expected) in [
        (nil, "/xdg/LMDBURLCache"), ("Custom", "/xdg/Custom"), ("", "/xdg/LMDBURLCache"), ("a/b", "/xdg/a/b"),
        (home + "/absolute", "/absolute"),
      ] as [(String?, String)] {
        let cache = LMDBURLCache(memoryCapacity: 0, diskCapacity: 4 << 20, diskPath: path)
        precondition(FileManager.default.fileExists(atPath: home + expected + "/data-1/data.mdb"), expected)
        let url = URL(string: "http://example.com/")!
        cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
        precondition(cache.isCached(url))
      }
      let later = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 4 << 20)
      precondition(later.isCached(URL(string: "http://example.com/")!))
      let entries = try FileManager.default.contentsOfDirectory(atPath: home + "/xdg").sorted()
      precondition(entries == ["Custom", "LMDBURLCache", "a"], "\(entries)")
      exit(0)
    }
  }

  @Test("With an unusable path, one initializer caches in memory and logs one line, and the other throws the reason")
  func unusablePath() async throws {
    let file = FileManager.default.temporaryDirectory.appendingPathComponent("file-\(UUID().uuidString)")
    try Data("a file".utf8).write(to: file)
    defer { try? FileManager.default.removeItem(at: file) }
    #expect { try LMDBURLCache(directory: file, memoryCapacity: 1 << 20, diskCapacity: 4 << 20) } throws: {
      "\($0)".contains(file.path)
    }
    setenv("LMDBURLCACHE_TEST_FILE", file.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_FILE") }
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_FILE"]!
      let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 4 << 20, diskPath: path)
      let url = URL(string: "http://example.com/")!
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      precondition(cache.isCached(url))
      precondition(cache.currentDiskUsage == 0)
      precondition(cache.flush())
      cache.removeAllCachedResponses()
      precondition(!cache.isCached(url))
      exit(0)
    }
    let lines = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
      .split(separator: "\n").filter { $0.hasPrefix("LMDBURLCache:") }
    #expect(lines.count == 1)
    #expect(lines.first?.contains("Disk caching is off") == true)
    #expect(try Data(contentsOf: file).text == "a file")
  }
}
