import FoundationEssentials
import HTTPCaching

/// What happens to what is known of a record's use when the record goes.
enum RecordUse {
  /// What becomes of a record's uses when it is removed.
  enum AfterRemoval {
    /// Forgotten: no request wants it back.
    case forget
    /// Kept for its return: it was evicted.
    case remember
    /// Passed on to the record that takes its place.
    case passOn
  }
}

extension ResponseStore {
  /// Notes that a response was used without a lookup, by a memory tier in front of the store. Costs tens of nanoseconds.
  ///
  /// It counts for all variants of the key.
  /// - Parameter digest: ``useDigest(of:)`` of the key.
  public func noteUse(of digest: UInt64) {
    index.use { file in
      guard let index = file.current else { return }
      var matches = index.matches(of: digest)
      while let match = matches.next() { index.noteUse(of: match) }
    }
  }

  /// What ``noteUse(of:)`` knows a response by. It holds for this store alone.
  public func useDigest(of key: RequestKey) -> UInt64 { file.keyDigest(of: key.bytes) }
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
