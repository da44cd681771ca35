import CacheModel
import FoundationEssentials
import HTTPCaching

/// The state of ``InFlightFetches``.
struct RegisteredFetches {
  /// The fetches for one key. Nearly always there is one, which needs no dictionary.
  struct FetchesOfKey {
    private var only: InFlightFetch?
    private var others: [ObjectIdentifier: InFlightFetch] = [:]

    var isEmpty: Bool { only == nil && others.isEmpty }
    var all: [InFlightFetch] { (only.map { [$0] } ?? []) + others.values }

    mutating func insert(_ fetch: InFlightFetch) {
      if only == nil { only = fetch } else { others[ObjectIdentifier(fetch)] = fetch }
    }

    mutating func remove(_ fetch: InFlightFetch) {
      if only === fetch { only = nil } else { others[ObjectIdentifier(fetch)] = nil }
    }
  }

  var joinable: [CoalescingKey: InFlightFetch] = [:]
  var byKey: [RequestKey: FetchesOfKey] = [:]
  var background: [ObjectIdentifier: InFlightFetch] = [:]
  /// The keys of requests whose last response could not be shared ("hit-for-miss").
  ///
  /// A request that waited for such a response would have to fetch its own afterwards, later than without a cache.
  var unshareable = RecentValues<Void>()
  /// The names in the `Vary` fields of recent responses, by cache key. Requests for these keys join only fetches of
  /// their own variant.
  var varyNames = RecentValues<String>()
  /// The keys of fetches that are now joinable under another key than their first.
  private var narrowedKeys: [ObjectIdentifier: CoalescingKey] = [:]
  /// The POST requests in flight whose responses have not arrived.
  var unanswered: Set<ObjectIdentifier> = []
  /// The last invalidation in progress of each key.
  var invalidations: [RequestKey: Task<Void, Never>] = [:]
  /// The number of in-flight requests that prevent responses to a key from being stored.
  var barred: [RequestKey: Int] = [:]
  /// The digests of the keys of the last 64 fetches that ended. The fetch with the number n is at the index n % 64.
  private var endedKeys = [UInt64](repeating: 0, count: 64)

  mutating func noteEnd(of key: RequestKey, number: UInt64) {
    endedKeys[Int(number % 64)] = key.spreadingDigest
  }

  /// Whether one of the fetches with these numbers was, or may have been, for a key.
  func mayHaveEnded(_ key: RequestKey, in numbers: Range<UInt64>) -> Bool {
    guard !numbers.isEmpty else { return false }
    guard numbers.count <= endedKeys.count else { return true }
    let digest = key.spreadingDigest
    return numbers.contains { endedKeys[Int($0 % 64)] == digest }
  }

  /// Returns the field names by which variants of a response are known to differ.
  func varyNames(of key: CoalescingKey, at now: Date) -> String? {
    varyNames.value(for: key.key.hashValue, at: now)
  }

  /// Returns the fetches that a request could join: of its variant, and of a variant that is not known yet.
  func fetches(_ narrowed: CoalescingKey, _ key: CoalescingKey) -> [InFlightFetch] {
    let fetch = joinable[key]
    guard narrowed.variant != nil else { return fetch.map { [$0] } ?? [] }
    return [joinable[narrowed], fetch].compactMap { $0 }
  }

  /// Returns the fetch that a request joins, if there is one.
  func openFetch(_ narrowed: CoalescingKey, _ key: CoalescingKey) -> InFlightFetch? {
    if let fetch = joinable[narrowed], fetch.isOpen { return fetch }
    guard narrowed.variant != nil, let fetch = joinable[key], fetch.isOpen else { return nil }
    return fetch
  }

  /// Makes a fetch joinable only for requests of a variant.
  mutating func narrow(_ fetch: InFlightFetch, to vary: VaryKey) {
    guard let key = joinableKey(of: fetch) else { return }
    let narrowed = key.narrowed(to: vary)
    close(fetch)
    guard joinable[narrowed] == nil else { return }
    joinable[narrowed] = fetch
    narrowedKeys[ObjectIdentifier(fetch)] = narrowed
  }

  /// Returns the key under which a fetch can be joined; nil if it is closed.
  private func joinableKey(of fetch: InFlightFetch) -> CoalescingKey? {
    guard let first = fetch.coalescingKey else { return nil }
    let key = narrowedKeys.isEmpty ? first : narrowedKeys[ObjectIdentifier(fetch)] ?? first
    return joinable[key] === fetch ? key : nil
  }

  mutating func add(_ fetch: InFlightFetch) {
    byKey[fetch.key, default: FetchesOfKey()].insert(fetch)
    guard barred.isEmpty || barred[fetch.key] == nil else { return fetch.permit.revoke() }
    if let key = fetch.coalescingKey { joinable[key] = fetch }
  }

  mutating func remove(_ fetch: InFlightFetch) {
    close(fetch)
    if let index = byKey.index(forKey: fetch.key) {
      byKey.values[index].remove(fetch)
      if byKey.values[index].isEmpty { byKey.remove(at: index) }
    }
    if !background.isEmpty { background[ObjectIdentifier(fetch)] = nil }
    if !unanswered.isEmpty { unanswered.remove(ObjectIdentifier(fetch)) }
  }

  mutating func close(_ fetch: InFlightFetch) {
    guard let key = joinableKey(of: fetch) else { return }
    joinable[key] = nil
    if !narrowedKeys.isEmpty { narrowedKeys[ObjectIdentifier(fetch)] = nil }
  }

  /// Returns the fetches for some keys that an invalidation outdates, after closing them to new followers, and the
  /// POST requests that it spares because their responses have not arrived. Only another POST spares them.
  mutating func takeOutdated(
    _ keys: [RequestKey], sparing change: InFlightFetch?
  ) -> (outdated: [InFlightFetch], spared: [InFlightFetch]) {
    var fetches = take(keys).filter { $0 !== change }
    guard change != nil, !unanswered.isEmpty else { return (fetches, []) }
    let outdatedCount = fetches.partition { unanswered.contains(ObjectIdentifier($0)) }
    return (Array(fetches[..<outdatedCount]), Array(fetches[outdatedCount...]))
  }

  /// Returns the fetches for some keys, after closing them to new followers.
  mutating func take(_ keys: [RequestKey]) -> [InFlightFetch] {
    var fetches: [InFlightFetch] = []
    for key in keys {
      for fetch in byKey[key]?.all ?? [] {
        close(fetch)
        fetches.append(fetch)
      }
    }
    return fetches
  }
}
