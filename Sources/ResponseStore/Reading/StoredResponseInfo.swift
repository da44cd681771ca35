public import FoundationEssentials
public import HTTPCaching

/// A stored response without its header fields and body.
public struct StoredResponseInfo: Sendable {
  /// The record's row ID. It does not show the age: eviction moves records that it keeps.
  public let rowID: UInt64
  /// The cache key.
  public let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  /// When it was stored.
  public let storedAt: Date
  /// Date, age and lifetime.
  public let freshness: FreshnessInfo
  /// The request fields of its Vary key.
  public var varyNames: [String] { vary.fields.map(\.name) }
  /// Its Vary key.
  package let vary: VaryKey
  /// The body's size in bytes.
  public let bodyByteCount: Int
  /// Whether the scope of the walk covers it.
  package let isCovered: Bool
}

/// The order in which a walk visits the entries.
public enum EntryOrder: Sendable {
  /// The order on disk, which is the fastest.
  case stored
  /// By the time of storing, oldest first.
  case time
}
