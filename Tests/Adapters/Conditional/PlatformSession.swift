import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif
#if canImport(LMDBURLCache)
  import LMDBURLCache
#endif

/// Creates a session whose responses are cached: by this package on Linux, and by Foundation on a Mac.
func makeCachingSession(in directory: URL) throws -> URLSession {
  #if canImport(LMDBURLCache)
    let cache = try LMDBURLCache(directory: directory, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
    return URLSession(configuration: .default.caching(with: cache))
  #else
    let configuration = URLSessionConfiguration.default
    configuration.urlCache = URLCache(memoryCapacity: 32 << 20, diskCapacity: 512 << 20, diskPath: directory.path)
    return URLSession(configuration: configuration)
  #endif
}
