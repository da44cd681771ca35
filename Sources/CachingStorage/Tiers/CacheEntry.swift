import CacheModel
public import FoundationEssentials
public import HTTPCaching
import ResponseStore
import Synchronization

/// A stored response as a lookup found it. The memory tier keeps this object.
///
/// Any thread can use it. It does not change, except for the marks of the memory tier.
public final class CacheEntry: StoredResponseMetadata, Sendable {
  /// The tier in which a lookup found a response.
  public enum Tier: String, Sendable, Hashable, CaseIterable {
    /// In the memory of this process.
    case memory
    /// On disk, or on its way there from this process.
    case disk
  }

  /// The object that a layer above has made of the response and keeps for later hits; nil until then.
  ///
  /// Declared first, because every hit reads it and the memory next to it.
  package let prepared = AtomicOnceReference<AnyObject & Sendable>()
  package let vary: VaryKey
  /// For the memory tier: the point in the order of removals up to which no removal covers the response. Lookups
  /// advance it.
  let removalToken = Atomic<RemovalToken>(0)
  /// For the memory tier: the digest of the key in the store's index; 0 if the store never had the response, or was
  /// emptied without the memory tier.
  let useDigest = Atomic<UInt64>(0)
  /// Whether a lookup in the memory tier used the response since the hand last passed. False at first, so that unused
  /// entries are evicted before used ones.
  let wasUsed = Atomic<Bool>(false)
  /// The approximate size of the response in the memory tier in bytes.
  let memoryByteCount: Int
  /// The key under which the response is stored.
  package let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  private let bytes: Data
  /// When the response is fresh.
  public let freshness: FreshnessInfo
  /// The time of storing.
  public let storedAt: Date
  /// When a validation last updated the response, or else the time of storing. Removals by date compare this time if
  /// the response is only in memory.
  public let updatedAt: Date
  private let source: Source
  /// Whether a program made the response for a lookup, so that no tier has it.
  package let isForeign: Bool
  /// The stored response, of which this is a copy that must be validated before use.
  private let original: CacheEntry?

  private enum Source: Sendable {
    case memory(fields: HeaderFields, attachment: [UInt8]?)
    case store(StoredResponse)

    var attachment: [UInt8]? {
      switch self {
      case .memory(_, let attachment): attachment
      case .store(let stored): stored.attachment
      }
    }

    /// The approximate size of the fields in bytes.
    var fieldsByteCount: Int {
      switch self {
      case .memory(let fields, _): fields.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count }
      case .store(let stored): stored.fieldsByteCount
      }
    }
  }

  /// The approximate size of the objects in bytes, without the bytes that they refer to.
  private static let objectsByteCount = 512

  /// Whether this is the result of a lookup on disk, and no lookup has found it in memory since.
  private let isFromDisk: Atomic<Bool>

  // MARK: Creating

  /// Creates a response for the tiers.
  ///
  /// - Parameters:
  ///   - attachment: Bytes of the layer above, which are stored with the response.
  ///   - updatedAt: When a validation last updated the response; nil if none has.
  ///   - prepared: What the layer above has made of the response already.
  ///   - isForeign: Whether no tier has the response.
  package init(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil, storedAt: Date,
    updatedAt: Date? = nil, prepared: (any PreparedEntry)? = nil, isForeign: Bool = false
  ) {
    self.key = key
    self.isForeign = isForeign
    status = response.status
    bytes = response.body
    freshness = response.freshness
    self.storedAt = storedAt
    self.updatedAt = updatedAt ?? storedAt
    vary = response.vary
    source = .memory(fields: response.fields, attachment: attachment)
    original = nil
    memoryByteCount = Self.objectsByteCount + key.bytes.count + bytes.count + source.fieldsByteCount
    isFromDisk = Atomic(false)
    if let prepared { self.prepared.storeIfNil(prepared) }
  }

  /// Creates a response that a lookup has read from disk.
  init(_ stored: StoredResponse, key: RequestKey) {
    self.key = key
    isForeign = false
    status = stored.status
    bytes = stored.storedBody == nil ? stored.body : Data()
    freshness = stored.freshness
    storedAt = stored.storedAt
    updatedAt = stored.updatedAt
    vary = stored.vary
    source = .store(stored)
    original = nil
    memoryByteCount = Self.objectsByteCount + key.bytes.count + bytes.count + source.fieldsByteCount
    isFromDisk = Atomic(true)
  }

  /// Creates the same response for another place in the memory tier.
  ///
  /// - Parameters:
  ///   - freshness: Another freshness; nil for the same.
  ///   - original: The stored response, if only this copy has the other freshness.
  private init(_ other: CacheEntry, freshness: FreshnessInfo?, original: CacheEntry?) {
    vary = other.vary
    memoryByteCount = other.memoryByteCount
    key = other.key
    status = other.status
    bytes = other.bytes
    self.freshness = freshness ?? other.freshness
    storedAt = other.storedAt
    updatedAt = other.updatedAt
    source = other.source
    isForeign = other.isForeign
    self.original = original
    isFromDisk = Atomic(original != nil && other.tier == .disk)
    if let prepared = other.prepared.load() { self.prepared.storeIfNil(prepared) }
  }

  /// Returns the same response for another place in the memory tier.
  package func copy() -> CacheEntry { CacheEntry(self, freshness: nil, original: nil) }

  /// Returns a copy for one lookup, which must be validated before use.
  func requiringValidation() -> CacheEntry {
    CacheEntry(self, freshness: freshness.requiringValidation, original: self)
  }

  /// The response that the tiers have, if this is a copy for one lookup.
  var stored: CacheEntry { original ?? self }

  /// Returns a response for the memory tier that is stale after a soft purge.
  ///
  /// - Parameter token: The point in the order of removals up to which the new response is compared.
  func softPurged(at date: Date, removalToken token: RemovalToken) -> CacheEntry {
    let stale = CacheEntry(self, freshness: freshness.softPurged(at: date), original: nil)
    stale.setPosition(token, useDigest: useDigest.load(ordering: .relaxed))
    return stale
  }

  /// Returns this response with the fields and freshness of a 304 (RFC 9111, section 4.3.4) that came at a time.
  package func updated(fields: HeaderFields, freshness: FreshnessInfo, at now: Date) -> CacheEntry {
    CacheEntry(
      CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary), for: key,
      attachment: attachment, storedAt: storedAt, updatedAt: max(now, updatedAt),
      prepared: (prepared.load() as? any PreparedEntry)?.afterUpdate())
  }

  // MARK: The memory tier

  /// Sets the position in the order of removals, and the digest of the key in the store's index; nil if no store has
  /// the response. Call this before the response is in the memory tier.
  func setPosition(_ token: RemovalToken, useDigest digest: UInt64?) {
    removalToken.store(token, ordering: .relaxed)
    useDigest.store(digest ?? 0, ordering: .relaxed)
  }

  /// Whether the store has the response of the memory tier, too, or has evicted it.
  var isOnDisk: Bool { useDigest.load(ordering: .relaxed) != 0 }

  /// Whether a lookup in the memory tier prefers this response to another matching one (RFC 9111, section 4.1).
  func goesBefore(_ other: CacheEntry) -> Bool {
    guard vary.hasVaryFields == other.vary.hasVaryFields else { return vary.hasVaryFields }
    return freshness.date >= other.freshness.date
  }

  // MARK: Parts

  /// The store's record from which this response was created.
  ///
  /// Its freshness may differ from ``freshness``, which a soft purge can end.
  var record: StoredResponse? {
    if case .store(let stored) = source { stored } else { nil }
  }

  /// The body. Traps if the lookup left it in the store.
  package var body: Data {
    precondition(!bytes.isEmpty || storedBody == nil, "The body is still in the store")
    return bytes
  }

  /// The body in the store, if the lookup left it there.
  package var storedBody: StoredBody? { record?.storedBody }

  /// The body. If the lookup left it in the store, it is read on each access, and is empty if it is no longer there.
  package var readBody: Data { bytes.isEmpty ? storedBody.map { $0.read(0..<$0.byteCount) ?? Data() } ?? bytes : bytes }

  /// The size of the body in bytes.
  public var bodyByteCount: Int { bytes.isEmpty ? storedBody?.byteCount ?? 0 : bytes.count }

  /// The header fields.
  ///
  /// - Complexity: Those of a response from disk are built on each access.
  public var fields: HeaderFields {
    switch source {
    case .memory(let fields, _): fields
    case .store(let stored): stored.fields
    }
  }

  /// Calls `body` with each field, without making a list of them.
  package func forEachField(_ body: (_ name: String, _ value: String) -> Void) {
    switch source {
    case .memory(let fields, _): for (name, value) in fields { body(name, value) }
    case .store(let stored): stored.forEachField(body)
    }
  }

  /// Bytes of the layer above.
  package var attachment: [UInt8]? { source.attachment }

  /// The response in the form that the store accepts.
  var cacheable: CacheableResponse {
    CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary)
  }

  /// The tier in which the last lookup found this response; nil if a program made the response for the lookup.
  public var tier: Tier? { isForeign ? nil : isFromDisk.load(ordering: .relaxed) ? .disk : .memory }

  /// Records that a lookup has found this response in the memory tier.
  func recordMemoryHit() {
    // Usually false already. A write would move the cache line between processors.
    if isFromDisk.load(ordering: .relaxed) { isFromDisk.store(false, ordering: .relaxed) }
  }
}

/// The object that a layer above has made of a stored response, such as a Foundation response. Any thread can use it.
package protocol PreparedEntry: AnyObject, Sendable {
  /// Returns the part that stays true after an update of the fields; nil if there is none.
  func afterUpdate() -> (any PreparedEntry)?
}
