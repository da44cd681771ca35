import FoundationEssentials
import HTTPCaching

/// What a record is known by in the table of uses, and what happens to that when the record goes.
enum RecordUse {
  /// What becomes of a record's uses when it is removed.
  enum AfterRemoval {
    /// Forgotten: nobody wants it back.
    case forget
    /// Kept for its return: it had to make room.
    case remember
    /// Passed on to the record that takes its place.
    case passOn
  }

  /// Stands for a key and a variant.
  static func digest(key: [UInt8], vary: [UInt8]) -> UInt64 {
    let ofKey = key.withUnsafeBytes { XXHash.digest64($0) }
    guard !vary.isEmpty else { return ofKey }
    let ofVary = vary.withUnsafeBytes { XXHash.digest64($0) }
    return ofKey ^ (ofVary << 17 | ofVary >> 47)
  }
}

extension ResponseStore {
  /// Notes that a response was used without a lookup, by a memory tier in front of the store. Costs tens of nanoseconds.
  ///
  /// - Parameter digest: ``useDigest(of:vary:)`` of the response.
  public func noteUse(of digest: UInt64) {
    uses.use { $0.noteUse(of: digest) }
  }

  /// What ``noteUse(of:)`` knows a response by.
  public static func useDigest(of key: RequestKey, vary: VarySelection) -> UInt64 {
    RecordUse.digest(key: key.bytes, vary: FieldCoding.encode(vary))
  }
}

extension HeadLayout {
  /// When the response stops being of use: it cannot be validated, and its lifetime and whatever allows it to be served
  /// stale are over. Nil for one that can be validated, and for one that says nothing of its lifetime.
  var expiry: Date? {
    let facts = facts
    let validators: FreshnessFacts.Flags = [.strongETag, .weakETag, .lastModified]
    guard status > 0, facts.lifetime > 0, facts.flags.isDisjoint(with: validators) else { return nil }
    let stale = max(facts.staleWhileRevalidate, facts.staleIfError, 0)
    return facts.responseTime + (facts.lifetime - facts.initialAge + stale)
  }
}
