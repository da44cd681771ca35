import CacheActivity
public import CacheModel
public import CachingClient
public import HTTPCaching
public import ResponseStore

#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// A ``/ResponseStore/ResponseStore`` as the storage of a ``/CachingClient/CachingClient``, without a memory tier.
///
///     let store = try ResponseStore.open(directory: path, options: .init(capacityByteCount: 512 << 20))
///     let client = CachingClient(store: store)
///
/// `remove` and `invalidate` return when the removal is durable.
public struct StoreStorage: ResponseStorage, SharesClientState {
  /// The store of the responses.
  public let store: ResponseStore
  private let options: CachingOptions
  package let clientState: ClientState

  /// Creates a storage on an open store.
  ///
  /// - Parameters:
  ///   - store: The store of the responses.
  ///   - options: The options of its caching client. With the default, a response that a shared cache stored for all
  ///     credentials does not match.
  public init(_ store: ResponseStore, options: CachingOptions = CachingOptions()) {
    self.store = store
    self.options = options
    clientState = ClientState(
      activity: store.activity,
      spaces: SpaceRecords(
        hasEquivalents: { store.mayHaveEquivalentURLs }, number: { store.keySpaceNumber(at: $0) },
        record: { store.lookup($0, leavingBodiesBeyond: nil, isCounted: false) { _ in true }?.fields }),
      hasVariants: {
        var isStored = false
        store.forEachVariant(of: $0) { _ in isStored = true }
        return isStored
      },
      effectOfRemovals: { store.possibleEffectOfRemovals(on: $0, since: &$1) })
    store.activity.record(isOfSharedCache: options.mode == .shared)
  }

  /// Returns the newest stored response whose Vary key matches.
  ///
  /// A response that was stored for all credentials matches only if the options permit that.
  public func lookup(_ request: CachingClientRequest) -> StoredResponse? {
    request.key.flatMap { lookup(request, at: $0) }
  }

  /// Returns the newest stored response with a key whose Vary key matches the request.
  public func lookup(_ request: CachingClientRequest, at key: RequestKey) -> StoredResponse? {
    let limit = request.readsBodyInPieces ? Self.maximumCopiedBodyByteCount : nil
    return store.lookup(key, leavingBodiesBeyond: limit) { vary in
      vary.matches(request.head, options: options, credentialDigest: store.credentialDigest)
    }
  }

  /// The maximum size of a body that is copied for a request that reads bodies in pieces.
  ///
  /// Larger bodies stay in the store.
  package static let maximumCopiedBodyByteCount = 1 << 20

  /// Returns the bytes that were copied with the entry.
  public func body(of entry: StoredResponse) -> Data { entry.body }

  /// Returns a range of the bytes that were copied with the entry or are still in the store.
  public func chunks(of entry: StoredResponse, in range: Range<Int>) -> ResponseBodyStream {
    guard let stored = entry.storedBody else { return ResponseBodyStream(entry.body.part(range)) }
    return ResponseBodyStream(stored, in: range)
  }

  /// Adds a response to the store's write queue, or drops it if the queue is full or the response too large.
  ///
  /// A response for memory only is not stored.
  public func store(_ proposal: ProposedResponse, for request: CachingClientRequest) {
    guard let key = request.key else { return }
    guard !proposal.isMemoryOnly else {
      proposal.report?.decide(.notStored(.memoryOnly))
      return
    }
    let outcome = store.store(
      proposal.response, for: key, attachment: proposal.userInfo.map { [UInt8]($0) },
      askedAt: proposal.removalToken, waitsForSpace: false, by: nil)
    if case .notStored(let rule) = outcome { proposal.refuse(rule) }
  }

  /// Replaces the fields and freshness of an entry.
  public func update(
    _ entry: StoredResponse, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) {
    store.update(entry, fields: fields, freshness: freshness, askedAt: token, waitsForSpace: false)
  }

  /// Removes an entry and the other variants with its cache key.
  public func remove(_ entry: StoredResponse, for request: CachingClientRequest) async {
    await onBlockingThread { [store] in store.remove(entry.key) }
  }

  /// Removes the URLs in the request's partition and the groups in all partitions.
  public func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async {
    let removed: [RemovalScope] =
      invalidation.resources.isEmpty
      ? invalidation.keys.map { .key($0.bytes) } : invalidation.resources.map { .resource($0) }
    let scopes = removed + invalidation.scopes
    token = await onBlockingThread { [store, token, key = request.key] in
      var token = token
      store.remove(scopes, movingPast: &token, of: key)
      return token
    }
  }

  /// The store's removal token.
  public var removalToken: RemovalToken { store.removalToken }

  /// Returns the number of variants from which a lookup would select.
  public func variantCount(of request: CachingClientRequest) -> Int {
    guard let key = request.key else { return 0 }
    var count = 0
    _ = store.lookup(key) { _ in
      count += 1
      return false
    }
    return count
  }

  /// Returns the store's keyed digest of a credential, or of the content of a query.
  public func digest(_ bytes: UnsafeRawBufferPointer) -> String { store.contentDigest(bytes) }
}

extension CachingClient where Storage == StoreStorage {
  /// Creates a caching client on a store.
  ///
  /// - Parameters:
  ///   - store: The store of the responses.
  ///   - options: The options of the cache.
  ///   - maximumBodyByteCount: The maximum size of a body to store. The default is a tenth of the store's own maximum,
  ///     which is about 5% of the capacity, as with `URLSession`. It is at least 16 MiB if the store permits that, and at
  ///     most 64 MiB.
  ///   - clock: Returns the time; the system clock by default.
  public convenience init(
    store: ResponseStore, options: CachingOptions = CachingOptions(), maximumBodyByteCount: Int? = nil,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    let largest = store.maximumBodyByteCount
    self.init(
      storage: StoreStorage(store, options: options), options: options,
      maximumBodyByteCount: maximumBodyByteCount ?? min(max(largest / 10, min(largest, 16 << 20)), 64 << 20),
      clock: clock)
  }
}

extension ResponseBodyStream {
  /// Creates a body that reads a range of a stored body on demand, in pieces of 256 KiB.
  ///
  /// It can be read any number of times. Reading throws ``/CachingClient/CachingClientError/storedBodyLost`` if the
  /// response is evicted, removed or replaced before the end of the range.
  public init(_ stored: StoredBody, in range: Range<Int>) {
    self.init(start: {
      var rest = range
      return {
        guard !rest.isEmpty else { return nil }
        try Task.checkCancellation()
        let piece = rest.prefix(256 << 10)
        guard let chunk = await onBlockingThread({ stored.read(piece) }) else {
          rest = rest.suffix(0)
          throw CachingClientError.storedBodyLost
        }
        rest = rest.dropFirst(piece.count)
        return chunk
      }
    })
  }
}
