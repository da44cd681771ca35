import Foundation
import FoundationNetworking
import LMDBURLCache

/// Hits for one user of a URL. The responses are stored before the first call, and after the other calls were counted,
/// because many of them change what an allocation costs.
func userCalls(_ folder: String) -> [HotCall] {
  [("data(for:), memory, the only user", 1), ("data(for:), memory, one of 5,000 users", 5000)].map { name, count in
    var known: (LMDBURLCache, URLRequest)?
    return HotCall(name: name) { _ in
      if let (cache, request) = known { return load(request, through: cache) }
      do {
        let cache = try LMDBURLCache(
          directory: URL(fileURLWithPath: folder + "-\(count)"), memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
        known = (cache, try storeForUsers(count, in: cache))
      } catch {
        fatalError("\(error)")
      }
    }
  }
}

/// Stores a response of 1 KB for each of some users of a URL. Returns the request of one of them.
func storeForUsers(_ count: Int, in cache: LMDBURLCache) throws -> URLRequest {
  let fields = ["Content-Type": "application/json", "Cache-Control": "private, max-age=2000000000", "ETag": "\"7a\""]
  guard let url = URL(string: "http://api.example.com/v2/of-\(count)/me"),
    let response = HTTPURLResponse(url: url, statusCode: 200, httpVersion: "HTTP/1.1", headerFields: fields)
  else { throw URLError(.badURL) }
  func request(_ user: Int) -> URLRequest {
    var request = URLRequest(url: url)
    request.setValue("Bearer eyJhbGciOiJIUzI1NiJ9.\(user).c2lnbmF0dXJl", forHTTPHeaderField: "Authorization")
    return request
  }
  let body = Data(repeating: 7, count: 1 << 10)
  for user in 0..<count {
    cache.storeCachedResponse(CachedURLResponse(response: response, data: body), for: request(user))
  }
  guard cache.flush(), cache.cachedResponse(for: request(count / 2)) != nil else { fatalError("not stored") }
  return request(count / 2)
}
