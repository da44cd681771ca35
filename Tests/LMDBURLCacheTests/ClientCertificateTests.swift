import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Testing

/// An origin may send each client certificate another private response.
@Suite("Client certificates", .timeLimit(.minutes(1)))
struct ClientCertificateTests {
  /// A directory that caches of several clients use. Each client has a file with its certificate.
  private final class Lab {
    let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    let files = URL(fileURLWithPath: memoryDirectory(for: 1 << 20))

    init() throws {
      try FileManager.default.createDirectory(at: files, withIntermediateDirectories: true)
      for name in ["ann", "bob"] { try Data("certificate of \(name)".utf8).write(to: file(name)) }
    }

    deinit {
      for url in [directory, files] { try? FileManager.default.removeItem(at: url) }
    }

    func file(_ name: String) -> URL { files.appendingPathComponent(name) }

    func cache(
      _ client: String?, _ configure: (inout LMDBURLCache.Options) -> Void = { _ in }
    ) throws -> LMDBURLCache {
      var options = LMDBURLCache.Options()
      var settings = CurlTransport.Configuration()
      if let path = client.map({ file($0).path }) {
        settings.clientCertificate = .init(certificateFile: path, keyFile: path)
      }
      options.transport = .curl(settings)
      configure(&options)
      return try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
    }
  }

  @Test("Caches with different client certificates share a directory and no response")
  func separation() async throws {
    let lab = try Lab()
    let origin = try LoopbackOrigin { Reply(200, [("Cache-Control", "private, max-age=600")], "\($0.number)") }
    let url = origin.url("/a")
    let clients = try [nil, "ann", "bob"].map { try lab.cache($0) }
    for (number, cache) in clients.enumerated() {
      #expect(!cache.isCached(url))
      #expect(try await cache.data(from: url).0.text == "\(number)")
      let session = URLSession(configuration: .ephemeral.caching(with: cache))
      #expect(try await session.data(from: url).0.text == "\(number)")
      #expect(try await cache.data(from: url, by: session).text == "\(number)")
      #expect(cache.cachedResponse(for: URLRequest(url: url))?.data.text == "\(number)")
      cache.flush()
    }
    // The certificate counts, and not the path of its file.
    try FileManager.default.copyItem(at: lab.file("ann"), to: lab.file("copy"))
    #expect(try await lab.cache("copy").data(from: url).0.text == "1")
    #expect(origin.requestCount == 3)
    // A purge reaches all of them.
    try await clients[0].purge(.url(url))
    for cache in clients { #expect(!cache.isCached(url)) }
    #expect(clients[0].core.store?.checkInvariants() == [])
    origin.stop()
  }

  @Test("Without a client certificate, keys stay as they were")
  func keys() async throws {
    let lab = try Lab()
    let url = try #require(URL(string: "http://example.com/a"))
    func partition(_ client: String?, _ own: String?) async throws -> String? {
      let cache = try lab.cache(client) { options in
        if let own { options.partition = { _ in own } }
      }
      var request = URLRequest(url: url)
      cache.storeCachedResponse(cached(url), for: request)
      // Loads use the same key.
      request.cachePolicy = .returnCacheDataDontLoad
      _ = try await cache.data(for: request)
      #expect(cache.flush())
      let key = try #require(cache.core.store?.entries(in: .stored).map(\.key).last)
      cache.removeAllCachedResponses()
      return key.partition
    }
    #expect(try await partition(nil, nil) == "")
    #expect(try await partition(nil, "tenant") == "tenant")
    let ann = try #require(try await partition("ann", nil))
    #expect(ann.wholeMatch(of: /client-certificate:[0-9a-f]{32}:/) != nil)
    #expect(try await partition("ann", "tenant") == ann + "tenant")
    #expect(try await partition("bob", nil) != ann)
    // The text of another client's partition gives no access to it.
    #expect(try await partition(nil, ann) != ann)
    #expect(try await partition(nil, ann + "tenant") != ann + "tenant")
    #expect(try await partition("bob", ann) != ann)
  }

  @Test("A client certificate that cannot be read throws")
  func missing() throws {
    let lab = try Lab()
    let error = #expect(throws: StoreError.self) { try lab.cache("missing") }
    #expect(error?.code == .invalidArgument)
    #expect(error?.localizedDescription.contains("Set the path of a readable file in PEM format") == true)
  }
}
