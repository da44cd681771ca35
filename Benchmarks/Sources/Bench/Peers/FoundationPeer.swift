import Foundation
import FoundationNetworking

/// Foundation's `URLCache` with its files. Used for few entries only, because every lookup lists the directory.
final class FoundationPeer: Peer {
  static let name = "Foundation URLCache"
  static let waits = true

  private let fixture: Fixture
  private let cache: URLCache

  init(folder: String, fixture: Fixture) throws {
    self.fixture = fixture
    cache = URLCache(memoryCapacity: 0, diskCapacity: 16 << 30, diskPath: folder)
  }

  static func request(_ url: String) -> URLRequest {
    guard let url = URL(string: url) else { fatalError("A fixture's URL is invalid: \(url)") }
    return URLRequest(url: url)
  }

  static func cachedResponse(_ fixture: Fixture, _ index: Int) -> CachedURLResponse {
    let fields = Dictionary(uniqueKeysWithValues: fixture.fields(index))
    guard let url = URL(string: fixture.url(index)),
      let response = HTTPURLResponse(url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields)
    else { fatalError("A fixture's response cannot be created") }
    return CachedURLResponse(response: response, data: fixture.body(index), userInfo: nil, storagePolicy: .allowed)
  }

  func store(_ range: Range<Int>) throws {
    for index in range {
      cache.storeCachedResponse(Self.cachedResponse(fixture, index), for: Self.request(fixture.url(index)))
    }
    // The cache writes in the background: wait until the last entry is stored.
    let deadline = Date().addingTimeInterval(120)
    while body(range.upperBound - 1) == nil {
      guard Date() < deadline else { throw BenchError("Foundation's URLCache did not keep what was stored") }
      usleep(10_000)
    }
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks { sum += body(Int(pick))?.count ?? 0 }
    return sum
  }

  func body(_ index: Int) -> Data? {
    cache.cachedResponse(for: Self.request(fixture.url(index)))?.data
  }

  func removeAll(since date: Date) { cache.removeCachedResponses(since: date) }

  func close() { cache.removeAllCachedResponses() }
}
