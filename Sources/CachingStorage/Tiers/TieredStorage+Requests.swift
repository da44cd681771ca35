import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching
import ResponseStore

/// Lookups for requests, and the decision whether a response may be stored on disk.
extension TieredStorage {
  /// Returns the stored response for a request of the caching client under a key. A large body is left in the store.
  package func lookup(_ request: CachingClientRequest, at key: RequestKey) -> CacheEntry? {
    let storage = Unretained(self)
    return lookup(key) { vary in
      storage.use { $0.matches(vary, request) }
    }
  }

  /// Returns the record of a key space, which is the same for all requests.
  package func keySpaceRecord(at key: RequestKey) -> HeaderFields? {
    lookup(key, isCounted: false) { _ in true }?.fields
  }

  /// Whether a response with No-Vary-Search may be stored.
  package var mayHaveEquivalentURLs: Bool {
    connection.openStore.use { $0.mayHaveEquivalentURLs } == true || hasStoredEquivalents.load(ordering: .acquiring)
  }

  private func matches(_ vary: VaryKey, _ request: CachingClientRequest) -> Bool {
    guard vary.fields.isEmpty else { return matches(vary, request.head) }
    return !request.namesUser && !request.head.fields.contains("authorization")
  }

  /// Whether a stored response with a Vary key matches a request.
  package func matches(_ vary: VaryKey, _ request: RequestHead) -> Bool {
    vary.matches(request, options: options.caching, credentialDigest: credentialDigest)
  }

  /// Returns a keyed digest of a credential.
  package func credentialDigest(_ value: String) -> String {
    store?.credentialDigest(value) ?? ResponseStore.credentialDigestInProcess(value)
  }

  /// Returns a keyed digest of a credential, or of the content of a query.
  func digest(_ bytes: UnsafeRawBufferPointer) -> String {
    store?.contentDigest(bytes) ?? ResponseStore.contentDigestInProcess(bytes)
  }

  /// Whether the storage policy, fields and freshness lifetime of a response allow storing it on disk.
  ///
  /// - Parameter request: Returns the request. Called only if the decision needs it.
  package func allowsDiskStorage(_ record: CacheEntry, isMemoryOnly: Bool, _ request: () -> RequestHead?) -> Bool {
    let settings = settings.withLock { $0 }
    guard !isMemoryOnly || settings.ignoresMemoryOnlyPolicy else { return false }
    guard record.status > 0, let head = request() else { return true }
    let response = ResponseHead(status: record.status, fields: record.fields)
    if response.fields.contains("cache-control") || head.fields.contains("cache-control"),
      ManualStorage.forbidsStoring(request: head, response: response, options: options.caching)
    {
      return false
    }
    return meetsMinimumLifetime(record.freshness) {
      ManualStorage(
        request: head, response: response, responseTime: record.freshness.responseTime, options: options.caching
      ).hasExplicitLifetime
    }
  }
}
