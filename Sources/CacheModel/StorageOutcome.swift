public import HTTPCaching

/// Whether a response is stored, and if not, why.
public enum StorageOutcome: Sendable, Hashable {
  /// Not known yet: the body is not complete, or a delegate or hook has not replied.
  case undecided
  /// The response comes from the store, or was accepted by it. What a full disk drops later is counted there.
  case stored
  /// The response is kept in memory only (``HTTPCaching/Rule/memoryOnly``).
  case storedInMemory
  /// The response is not stored, for this reason.
  case notStored(Rule)
}

/// The rules by which a storage does not keep a response.
extension Rule {
  /// The body is larger than the cache stores.
  public static let bodyTooLarge = Rule("body-too-large", "9111 3", "the body is larger than the cache stores")
  /// The header fields, the URL, the fields of the Vary key and the caller's bytes take more than the storage keeps of
  /// one response.
  public static let recordTooLarge = Rule(
    "record-too-large", "9111 3", "header fields and URL are larger than the cache stores")
  /// The response is kept in memory only: it is fresh for less than the minimum interval, or a directive or the
  /// caller's policy keeps it off the disk.
  public static let memoryOnly = Rule(
    "memory-only", "9111 3", "kept in memory only: too short a lifetime for the disk, or forbidden there")
  /// The store dropped the write: its write queue or the disk is full, a removal covers the response, or it has failed.
  public static let writeDropped = Rule(
    "write-dropped", "9111 3", "the store had no space for the write, or has failed")

  /// Returns ``bodyTooLarge`` with the limit in its text.
  package static func bodyTooLarge(limit: Int) -> Rule {
    Rule(bodyTooLarge.id, bodyTooLarge.section, "the body is larger than \(limit) bytes, the limit of the cache")
  }

  /// Returns ``recordTooLarge`` with the limit in its text.
  package static func recordTooLarge(limit: Int) -> Rule {
    Rule(
      recordTooLarge.id, recordTooLarge.section,
      "header fields and URL are larger than \(limit) bytes, the limit of the cache")
  }

  /// Whether the response is not stored because of its size.
  package var concernsSize: Bool { [.bodyTooLarge, .recordTooLarge, .tooManyFields, .tooManyTags].contains(self) }

  /// Whether a storage does not keep a response by this rule, which the caching client would store.
  package var isOfStorage: Bool { concernsSize || self == .memoryOnly }
}
