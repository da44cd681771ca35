import CacheModel
import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization

/// A minimal storage in memory: the variants of each key; lookups prefer the newest `Date`.
final class MemoryStorage: ResponseStorage {
  struct Entry: StoredResponseMetadata, Sendable {
    let number: Int
    let status: Int
    let fields: HeaderFields
    let freshness: FreshnessInfo
    let body: Data
    let vary: VaryKey
    let proposal: ProposedResponse

    var bodyByteCount: Int { body.count }
  }

  private struct State {
    var entries: [RequestKey: [Entry]] = [:]
    var lastNumber = 0
  }

  private let state = Mutex(State())
  private let nextAction = Mutex<(@Sendable () -> Void)?>(nil)
  private let removalCount = Atomic<RemovalToken>(0)
  /// Whether responses are kept; false simulates a full disk.
  let keeps: Bool
  /// Whether `store` checks again, inside its lock, if the store permit was revoked.
  let asksAgain: Bool
  /// Runs at the start of `store`, before the response is visible.
  let whenStoring: @Sendable () -> Void
  /// Runs at the end of `lookup`.
  let whenLooked: @Sendable () -> Void
  /// How large bodies are stored.
  let placement: @Sendable () -> BodyPlacement

  init(
    keeps: Bool = true, asksAgain: Bool = true, whenStoring: @escaping @Sendable () -> Void = {},
    whenLooked: @escaping @Sendable () -> Void = {},
    placement: @escaping @Sendable () -> BodyPlacement = { .inMemory(maximumByteCount: .max) }
  ) {
    self.placement = placement
    self.keeps = keeps
    self.asksAgain = asksAgain
    self.whenStoring = whenStoring
    self.whenLooked = whenLooked
  }

  /// Runs an action once, at the end of the next lookup.
  func afterNextLookup(_ action: @escaping @Sendable () -> Void) {
    nextAction.withLock { $0 = action }
  }

  func lookup(_ request: CachingClientRequest) -> Entry? { request.key.flatMap { lookup(request, at: $0) } }

  func lookup(_ request: CachingClientRequest, at key: RequestKey) -> Entry? {
    defer {
      whenLooked()
      nextAction.withLock { $0.take() }?()
    }
    return state.withLock { state in
      (state.entries[key] ?? [])
        .filter { $0.vary.matches(request.head, credentialDigest: credentialDigest) }
        .max { $0.freshness.date < $1.freshness.date }
    }
  }

  func body(of entry: Entry) -> Data { entry.body }

  func placement(ofBody proposal: ProposedResponse, for request: CachingClientRequest) -> BodyPlacement { placement() }

  var checksRevocation: Bool { asksAgain }

  func store(_ proposal: ProposedResponse, for request: CachingClientRequest) {
    whenStoring()
    guard keeps, let key = request.key else { return }
    state.withLock { state in
      // Check inside the lock that removals take, so that no revocation is missed.
      guard !asksAgain || !proposal.isRevoked else { return }
      state.lastNumber += 1
      let entry = Entry(
        number: state.lastNumber, status: proposal.status, fields: proposal.fields, freshness: proposal.freshness,
        body: proposal.body,
        vary: proposal.vary, proposal: proposal)
      state.entries[key, default: []].removeAll { $0.vary == entry.vary }
      state.entries[key, default: []].append(entry)
    }
  }

  func update(
    _ entry: Entry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) {
    guard let key = request.key else { return }
    state.withLock { state in
      guard let index = state.entries[key]?.firstIndex(where: { $0.number == entry.number }) else { return }
      state.entries[key]?[index] = Entry(
        number: entry.number, status: entry.status, fields: fields, freshness: freshness, body: entry.body,
        vary: entry.vary,
        proposal: entry.proposal)
    }
  }

  func remove(_ entry: Entry, for request: CachingClientRequest) {
    guard let key = request.key else { return }
    state.withLock { $0.entries[key]?.removeAll { $0.number == entry.number } }
  }

  func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) {
    let groups = invalidation.groups
    state.withLock { state in
      for key in invalidation.keys { state.entries[key] = nil }
      for key in state.entries.keys where Invalidation.origin(of: URL(string: key.urlString)!) == invalidation.origin {
        state.entries[key]?.removeAll { !Set(CacheGroups.groups(of: $0.fields)).isDisjoint(with: groups) }
      }
    }
  }

  /// Removes everything, like a purge by another process.
  func removeAll() {
    state.withLock { $0.entries = [:] }
    removalCount.add(1, ordering: .sequentiallyConsistent)
  }

  var removalToken: RemovalToken { removalCount.load(ordering: .sequentiallyConsistent) }

  func effectOfRemovals(on key: RequestKey, since token: inout RemovalToken) -> RemovalEffect {
    defer { token = removalToken }
    return removalToken != token ? .removed : .none
  }

  /// The number of responses, without the records of key spaces.
  var entryCount: Int {
    state.withLock { state in
      state.entries.reduce(0) { $0 + ($1.key.isKeySpace ? 0 : $1.value.count) }
    }
  }
}
