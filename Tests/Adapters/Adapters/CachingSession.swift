import Foundation
import FoundationNetworking
import LMDBURLCache
import OpenAPIURLSession

/// Returns a transport for generated clients, whose responses are cached.
func makeTransport(cache: LMDBURLCache) -> URLSessionTransport {
  let session = URLSession(configuration: .default.caching(with: cache))
  return URLSessionTransport(configuration: .init(session: session))
}
