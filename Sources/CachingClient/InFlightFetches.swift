import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization

/// All in-flight fetches, by the keys by which requests join them and invalidations find them.
///
/// While the lock is held, only the dictionaries, the fetches' states and the permits' flags are accessed.
final class InFlightFetches: Sendable {
  /// The role of a request that needs the origin.
  enum FetchRole {
    case follow(InFlightFetch)
    case lead(InFlightFetch)
    /// A fetch is in flight whose response is too old for the request. Wait for its end, then look again.
    case wait(InFlightFetch)
    /// A fetch has ended since the request's lookup, so its response may be in the store now.
    case lookAgain
  }

  private let state = Mutex(RegisteredFetches())
  private let makePermit: @Sendable (RequestKey, RemovalToken) -> StorePermit
  private let ended = Atomic<UInt64>(0)
  private let numbers = Atomic<UInt64>(0)

  /// - Parameter makePermit: Returns a store permit that removals since a token revoke. Called for each fetch before
  ///   its request is sent.
  init(makePermit: @escaping @Sendable (RequestKey, RemovalToken) -> StorePermit) {
    self.makePermit = makePermit
  }

  /// The number of fetches that have ended. A request reads it before its lookup.
  var endedCount: UInt64 { ended.load(ordering: .acquiring) }

  /// Returns a unique number for a follower.
  func makeNumber() -> UInt64 {
    numbers.wrappingAdd(1, ordering: .relaxed).newValue
  }

  /// Returns the fetch to follow, or makes the caller the leader of a new fetch.
  ///
  /// While responses to this key are known not to be shareable, the new fetch cannot be joined.
  ///
  /// - Parameters:
  ///   - start: The point before the lookup. A removal since then revokes the permit of a new fetch.
  ///   - begin: Follow only a fetch that began after this time; nil if any will do.
  func joinOrLead(_ key: CoalescingKey, since start: LookupStart, now: Date, after begin: UInt64? = nil) -> FetchRole {
    guard !state.withLock({ $0.unshareable.contains(key.key, at: now) }) else {
      return .lead(startUnshared(key.key, since: start.removalToken))
    }
    closeIfRevoked(key)
    let made = makeFetch(key.key, coalescingKey: key, since: start.removalToken)
    return state.withLock { state in
      if let fetch = state.joinable[key], fetch.isOpen {
        if let begin, fetch.startedAt < begin { return .wait(fetch) }
        return .follow(fetch)
      }
      // A fetch stores its response before it ends. So if none for this key has ended, the lookup missed no response.
      guard !state.mayHaveEnded(key.key, in: start.endedFetchCount..<ended.load(ordering: .acquiring)) else {
        return .lookAgain
      }
      state.add(made)
      return .lead(made)
    }
  }

  /// Returns a new fetch that cannot be joined. It is registered, so that invalidations revoke its permit.
  ///
  /// - Parameter token: The removal token from before the lookup, or before the request is sent.
  func startUnshared(_ key: RequestKey, since token: RemovalToken) -> InFlightFetch {
    let made = makeFetch(key, coalescingKey: nil, since: token)
    state.withLock { $0.add(made) }
    return made
  }

  /// Returns a new background fetch, or `nil` if a fetch for this key is already in flight.
  func startInBackground(_ key: CoalescingKey, since start: LookupStart) -> InFlightFetch? {
    closeIfRevoked(key)
    let made = makeFetch(key.key, coalescingKey: key, since: start.removalToken, isBackground: true)
    return state.withLock { state in
      if let fetch = state.joinable[key], fetch.isOpen { return nil }
      state.add(made)
      state.background[ObjectIdentifier(made)] = made
      return made
    }
  }

  private func makeFetch(
    _ key: RequestKey, coalescingKey: CoalescingKey?, since token: RemovalToken, isBackground: Bool = false
  ) -> InFlightFetch {
    InFlightFetch(key: key, coalescingKey: coalescingKey, permit: makePermit(key, token), isBackground: isBackground)
  }

  /// Closes the fetch for a key if a removal has revoked its permit. Not under the lock, because this asks the storage.
  private func closeIfRevoked(_ key: CoalescingKey) {
    guard let fetch = state.withLock({ $0.joinable[key] }), fetch.permit.isRevoked else { return }
    state.withLock { $0.close(fetch) }
  }

  /// Closes a fetch to new followers.
  func close(_ fetch: InFlightFetch) {
    state.withLock { $0.close(fetch) }
  }

  /// Closes a fetch to new followers, and no longer counts it as background work.
  func detach(_ fetch: InFlightFetch) {
    state.withLock { state in
      state.close(fetch)
      state.background[ObjectIdentifier(fetch)] = nil
    }
  }

  /// Records whether responses to a key can be shared. If not, requests for it do not wait for each other for a minute.
  func recordShareability(_ key: RequestKey, isShareable: Bool, now: Date) {
    state.withLock { state in
      if isShareable { state.unshareable.remove(key) } else { state.unshareable.insert(key, at: now) }
    }
  }

  /// Removes a fetch that has ended and stored its response.
  func finish(_ fetch: InFlightFetch) {
    state.withLock { state in
      state.remove(fetch)
      state.noteEnd(of: fetch.key, number: ended.load(ordering: .relaxed))
      ended.wrappingAdd(1, ordering: .acquiringAndReleasing)
    }
  }

  /// Revokes the store permits of all fetches for a key except one. Later requests do not join them.
  ///
  /// - Returns: Whether there were any.
  func revokePermits(_ key: RequestKey, sparing spared: InFlightFetch? = nil) -> Bool {
    let fetches = state.withLock { $0.take([key]) }.filter { $0 !== spared }
    for fetch in fetches { fetch.permit.revoke() }
    return !fetches.isEmpty
  }

  /// Revokes the store permits of all fetches for matching keys except one. Later requests do not join them.
  ///
  /// - Parameter isSoft: Whether a soft purge is the reason.
  func revokePermits(
    sparing spared: InFlightFetch? = nil, isSoft: Bool = false, where matches: (RequestKey) -> Bool
  ) {
    let keys = state.withLock { Array($0.byKey.keys) }.filter(matches)
    let fetches = state.withLock { $0.take(keys) }
    for fetch in fetches where fetch !== spared { fetch.permit.revoke(isSoft: isSoft) }
  }

  /// Prevents responses to a key from being stored, until ``unbar(_:)``.
  ///
  /// This applies to in-flight fetches and to those that begin before ``unbar(_:)``. Later requests do not join them.
  func bar(_ key: RequestKey) {
    state.withLock { $0.barred[key, default: 0] += 1 }
    _ = revokePermits(key)
  }

  /// Ends one call of ``bar(_:)``.
  func unbar(_ key: RequestKey) {
    state.withLock { state in
      guard let count = state.barred[key] else { return }
      state.barred[key] = count > 1 ? count - 1 : nil
    }
  }

  /// The background fetches in flight.
  var backgroundFetches: [InFlightFetch] {
    state.withLock { Array($0.background.values) }
  }
}

/// The state of ``InFlightFetches``.
private struct RegisteredFetches {
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
  var unshareable = UnshareableKeys()
  /// The number of in-flight requests that prevent responses to a key from being stored.
  var barred: [RequestKey: Int] = [:]
  /// The digests of the keys of the fetches that ended last, at their numbers modulo the count.
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
  }

  mutating func close(_ fetch: InFlightFetch) {
    guard let key = fetch.coalescingKey, joinable[key] === fetch else { return }
    joinable[key] = nil
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
