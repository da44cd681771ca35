import CacheModel
import FoundationEssentials
import HTTPCaching
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
  private let invalidations = Atomic<UInt64>(0)

  /// - Parameter makePermit: Returns a store permit that removals since a token revoke. Called for each fetch before
  ///   its request is sent.
  init(makePermit: @escaping @Sendable (RequestKey, RemovalToken) -> StorePermit) {
    self.makePermit = makePermit
  }

  /// The number of fetches that have ended. A request reads it before its lookup.
  var endedCount: UInt64 { ended.load(ordering: .acquiring) }

  /// The number of invalidations, and of removals by the program, that have begun.
  var invalidationCount: UInt64 { invalidations.load(ordering: .acquiring) }

  /// Returns a unique number for a follower.
  func makeNumber() -> UInt64 {
    numbers.wrappingAdd(1, ordering: .relaxed).newValue
  }

  /// Returns the fetch to follow, or makes the caller the leader of a new fetch.
  ///
  /// While responses to such a request are known not to be shareable, the new fetch cannot be joined.
  ///
  /// - Parameters:
  ///   - urlKey: The key of the request's URL.
  ///   - start: The point before the lookup. A removal since then revokes the permit of a new fetch.
  ///   - begin: Follow only a fetch that began after this time; nil if any will do.
  ///   - stallLimit: Join no fetch whose body has made no progress for this time; nil if any will do.
  ///   - variant: Returns the Vary key of the request for the names in a `Vary` field.
  func joinOrLead(
    _ key: CoalescingKey, of urlKey: RequestKey, since start: LookupStart, now: Date, after begin: UInt64? = nil,
    stallLimit: Duration? = nil, variant: (String) -> VaryKey
  ) -> FetchRole {
    while true {
      let (narrowed, names) = narrow(key, at: now, variant: variant)
      guard !state.withLock({ $0.unshareable.value(for: narrowed.hashValue, at: now) != nil }) else {
        return .lead(startUnshared(urlKey, identity: key.key, since: start.removalToken))
      }
      closeIfRevoked(narrowed, key, orStalledFor: stallLimit)
      let made = makeFetch(urlKey, identity: key.key, coalescingKey: narrowed, since: start.removalToken)
      let role = state.withLock { state -> FetchRole? in
        // Requests of one variant must look for each other under the same key.
        guard state.varyNames(of: key, at: now) == names else { return nil }
        if let fetch = state.openFetch(narrowed, key) {
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
      if let role { return role }
    }
  }

  /// Returns a new fetch that cannot be joined. It is registered, so that invalidations revoke its permit.
  ///
  /// - Parameters:
  ///   - key: The key of the request's URL.
  ///   - identity: The identity of the requests for the same response; nil if it is the key.
  ///   - token: The removal token from before the lookup, or before the request is sent.
  ///   - isChange: Whether the request is a POST. Invalidations by other POST requests revoke its permit only after
  ///     ``recordHead(of:)`` or ``invalidate(_:where:by:_:)``.
  func startUnshared(
    _ key: RequestKey, identity: RequestKey? = nil, since token: RemovalToken, isChange: Bool = false
  ) -> InFlightFetch {
    let made = makeFetch(key, identity: identity ?? key, coalescingKey: nil, since: token, isChange: isChange)
    state.withLock { state in
      state.add(made)
      if isChange { state.unanswered.insert(ObjectIdentifier(made)) }
    }
    return made
  }

  /// Returns a new background fetch, or `nil` if a fetch for this key is already in flight.
  ///
  /// - Parameters:
  ///   - urlKey: The key of the request's URL.
  ///   - variant: As for ``joinOrLead(_:of:since:now:after:stallLimit:variant:)``.
  func startInBackground(
    _ key: CoalescingKey, of urlKey: RequestKey, since start: LookupStart, now: Date, variant: (String) -> VaryKey
  ) -> InFlightFetch? {
    let narrowed = narrow(key, at: now, variant: variant).key
    closeIfRevoked(narrowed, key)
    let made = makeFetch(
      urlKey, identity: key.key, coalescingKey: narrowed, since: start.removalToken, isBackground: true)
    return state.withLock { state in
      // A background fetch is no longer open while it reads the rest of a response that is not stored.
      if state.openFetch(narrowed, key) != nil || state.joinable[narrowed]?.isBackground == true { return nil }
      state.add(made)
      state.background[ObjectIdentifier(made)] = made
      return made
    }
  }

  /// Counts a fetch as background work, because its caller no longer waits for it.
  func continueInBackground(_ fetch: InFlightFetch) {
    state.withLock { state in
      guard state.byKey[fetch.key]?.all.contains(where: { $0 === fetch }) == true else { return }
      state.background[ObjectIdentifier(fetch)] = fetch
    }
  }

  private func makeFetch(
    _ key: RequestKey, identity: RequestKey, coalescingKey: CoalescingKey?, since token: RemovalToken,
    isBackground: Bool = false, isChange: Bool = false
  ) -> InFlightFetch {
    InFlightFetch(
      key: key, identity: identity, coalescingKey: coalescingKey, permit: makePermit(key, token),
      isBackground: isBackground, isChange: isChange)
  }

  /// Returns the key narrowed to the request's variant, and the field names by which variants are known to differ.
  private func narrow(
    _ key: CoalescingKey, at now: Date, variant: (String) -> VaryKey
  ) -> (key: CoalescingKey, names: String?) {
    guard let names = state.withLock({ $0.varyNames(of: key, at: now) }) else { return (key, nil) }
    return (key.narrowed(to: variant(names)), names)
  }

  /// Closes the fetches that a request could join if removals have revoked their permits, or if their bodies have made
  /// no progress for some time. Call this without the lock, because it asks the storage.
  private func closeIfRevoked(
    _ narrowed: CoalescingKey, _ key: CoalescingKey, orStalledFor stallLimit: Duration? = nil
  ) {
    for fetch in state.withLock({ $0.fetches(narrowed, key) })
    where fetch.permit.isRevoked || stallLimit.map({ fetch.hasStalled(for: $0) }) == true { close(fetch) }
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

  /// Records that a request was not of the variant of a fetch's response.
  ///
  /// Requests of that variant still join the fetch. Others no longer do, and for a minute they share fetches by
  /// variant.
  func separateVariants(by vary: VaryKey, _ fetch: InFlightFetch, now: Date) {
    guard let names = vary.distinguishingNames else { return }
    state.withLock { state in
      state.varyNames.insert(names, for: fetch.identity.hashValue, at: now)
      state.narrow(fetch, to: vary)
    }
  }

  /// Records that the response to a request cannot be shared. Such requests do not wait for each other for a minute.
  ///
  /// - Parameter vary: The Vary key of the response, if its `Vary` names fields.
  func recordUnshareable(_ key: CoalescingKey, vary: VaryKey?, now: Date, variant: (String) -> VaryKey) {
    var narrowed = narrow(key, at: now, variant: variant).key
    let names = vary?.distinguishingNames
    if names != nil, let vary { narrowed = key.narrowed(to: vary) }
    state.withLock { state in
      if let names { state.varyNames.insert(names, for: key.key.hashValue, at: now) }
      state.unshareable.insert((), for: narrowed.hashValue, at: now)
    }
  }

  /// Records that the response to a request, which has this Vary key, can be shared.
  func recordShareable(_ key: CoalescingKey, vary: VaryKey, now: Date) {
    state.withLock { state in
      guard !state.unshareable.isEmpty || !state.varyNames.isEmpty else { return }
      state.unshareable.remove(key.hashValue)
      state.unshareable.remove(key.narrowed(to: vary).hashValue)
      if let names = state.varyNames(of: key, at: now), names == vary.distinguishingNames {
        state.varyNames.insert(names, for: key.key.hashValue, at: now)
      }
    }
  }

  /// Removes a fetch that has ended and stored its response.
  ///
  /// - Parameter response: The key of the response and its variant. Those of fetches that began before are not stored
  ///   in its place, because they may be older. Nil if they may be.
  func finish(_ fetch: InFlightFetch, storedAs response: (key: RequestKey, vary: VaryKey)? = nil) {
    state.withLock { state in
      state.remove(fetch)
      state.noteEnd(of: fetch.identity, number: ended.load(ordering: .relaxed))
      ended.wrappingAdd(1, ordering: .acquiringAndReleasing)
      guard let response, let others = state.byKey[fetch.key] else { return }
      for other in others.all where other.startedAt < fetch.startedAt && !other.isChange {
        other.noteOvertaken(at: response.key, response.vary)
      }
    }
  }

  /// Revokes the store permits of all fetches for matching keys. Later requests do not join them.
  ///
  /// - Parameter isSoft: Whether a soft purge is the reason.
  func revokePermits(isSoft: Bool = false, where matches: (RequestKey) -> Bool) {
    invalidations.wrappingAdd(1, ordering: .acquiringAndReleasing)
    let keys = state.withLock { Array($0.byKey.keys) }.filter(matches)
    let fetches = state.withLock { $0.take(keys) }
    for fetch in fetches { fetch.permit.revoke(isSoft: isSoft) }
  }

  /// Records that the head of the response to a change has arrived. From now on invalidations revoke its permit.
  func recordHead(of change: InFlightFetch) {
    state.withLock { _ = $0.unanswered.remove(ObjectIdentifier(change)) }
  }

  /// Invalidates keys: revokes the store permits that the invalidation outdates, then calls `remove`.
  ///
  /// The invalidations of one key take place in the order of these calls: each calls `remove` after those of the
  /// earlier ones have returned. Otherwise an earlier POST could remove the stored response to a later one. A POST does
  /// not revoke the permits of other POST requests whose responses have not arrived, see ``ForwardedRequest``.
  ///
  /// - Parameters:
  ///   - matches: Returns whether to revoke the permits for other keys; nil for none.
  ///   - change: The POST whose response invalidates; nil for another request, whose response is never stored.
  ///   - remove: Removes the stored responses. Receives whether permits were revoked, and the POST requests whose
  ///     permits were not.
  func invalidate(
    _ keys: [RequestKey], where matches: ((RequestKey) -> Bool)?, by change: InFlightFetch?,
    _ remove: @escaping @Sendable (_ revokesPermits: Bool, _ spared: [InFlightFetch]) async -> Void
  ) async {
    invalidations.wrappingAdd(1, ordering: .acquiringAndReleasing)
    let others = matches.map { state.withLock { Array($0.byKey.keys) }.filter($0) } ?? []
    let turn = state.withLock { state -> Task<Void, Never> in
      if let change { state.unanswered.remove(ObjectIdentifier(change)) }
      let (outdated, spared) = state.takeOutdated(keys + others, sparing: change)
      let earlier = keys.compactMap { state.invalidations[$0] }
      let turn = Task {
        for fetch in outdated { fetch.permit.revoke() }
        for invalidation in earlier { await invalidation.value }
        await remove(!outdated.isEmpty, spared)
      }
      for key in keys { state.invalidations[key] = turn }
      return turn
    }
    await turn.value
    state.withLock { state in
      for key in keys where state.invalidations[key] == turn { state.invalidations[key] = nil }
    }
  }

  /// Prevents responses to a key from being stored, until ``unbar(_:)``.
  ///
  /// This applies to in-flight fetches and to those that begin before ``unbar(_:)``. Later requests do not join them.
  func bar(_ key: RequestKey) {
    let fetches = state.withLock { state in
      state.barred[key, default: 0] += 1
      return state.take([key])
    }
    for fetch in fetches { fetch.permit.revoke() }
  }

  /// Ends one call of ``bar(_:)``.
  func unbar(_ key: RequestKey) {
    state.withLock { state in
      guard let count = state.barred[key] else { return }
      state.barred[key] = count > 1 ? count - 1 : nil
    }
  }

  var backgroundFetches: [InFlightFetch] {
    state.withLock { Array($0.background.values) }
  }
}
