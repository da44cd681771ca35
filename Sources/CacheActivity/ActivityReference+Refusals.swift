import CacheModel
import Glibc
import Synchronization

/// Counting and remembering responses that are not stored.
extension ActivityReference {
  /// Counts a response that a rule kept from being stored.
  ///
  /// Rules beyond the 128 of the file are counted together with the last one.
  ///
  /// - Parameter key: The key of the request, for ``ActivityFile/lastRefusal(of:)``; nil if it has none.
  package func countRefusal(_ rule: String, of key: RequestKey? = nil) {
    guard let base, let (slot, isOwn) = Self.slot(of: rule, base) else { return }
    Self.refusal(slot, base).count.pointee.wrappingAdd(1, ordering: .relaxed)
    if let key, isOwn { RecentRefusals(base: base).record(rule: slot, of: key) }
  }

  /// Remembers that a rule kept a response out of the disk, without counting it as a refusal.
  package func noteRefusal(_ rule: String, of key: RequestKey) {
    guard let base, let (slot, isOwn) = Self.slot(of: rule, base), isOwn else { return }
    RecentRefusals(base: base).record(rule: slot, of: key)
  }

  /// Returns the slot of a rule, which it takes if the rule has none; the last slot if all are taken by other rules.
  private static func slot(of rule: String, _ base: UnsafeMutableRawPointer) -> (number: Int, isOwn: Bool)? {
    let hash = ActivityLayout.hash(ofRule: rule)
    for number in 0..<ActivityLayout.refusalCount {
      let (owner, _, text) = refusal(number, base)
      var present = owner.pointee.load(ordering: .relaxed)
      if present == 0 {
        let (exchanged, original) = owner.pointee.compareExchange(expected: 0, desired: hash, ordering: .relaxed)
        present = exchanged ? hash : original
      }
      guard present == hash else { continue }
      setRule(rule, text)
      return (number, true)
    }
    return (ActivityLayout.refusalCount - 1, false)
  }

  private typealias Word = UnsafeMutablePointer<Atomic<UInt64>>

  private static func refusal(
    _ number: Int, _ base: UnsafeMutableRawPointer
  ) -> (owner: Word, count: Word, text: UnsafeMutableRawPointer) {
    let slot = base + ActivityLayout.refusalsOffset + number * ActivityLayout.refusalByteCount
    return (ActivityLayout.word(slot, 0), ActivityLayout.word(slot, 8), slot + 16)
  }

  /// Writes the ID of a rule, unless it is there: the process that took the slot may have died before.
  private static func setRule(_ rule: String, _ text: UnsafeMutableRawPointer) {
    for (index, word) in ActivityFile.words(ofRule: rule).enumerated() {
      let target = ActivityLayout.word(text, index * 8)
      if target.pointee.load(ordering: .relaxed) != word { target.pointee.store(word, ordering: .relaxed) }
    }
  }
}

extension ActivityFile {
  /// Returns the first 48 bytes of a rule's ID as words, filled with zeros.
  static func words(ofRule rule: String) -> [UInt64] {
    var words = [UInt64](repeating: 0, count: ActivityLayout.maximumRuleByteCount / 8)
    for (index, byte) in rule.utf8.prefix(ActivityLayout.maximumRuleByteCount).enumerated() {
      words[index / 8] |= UInt64(byte) << UInt64(index % 8 * 8)
    }
    return words
  }

  /// Returns the ID of the rule in a slot; an empty one if the slot is free.
  func rule(inSlot number: Int) -> String {
    let text = base + ActivityLayout.refusalsOffset + number * ActivityLayout.refusalByteCount + 16
    let bytes = (0..<ActivityLayout.maximumRuleByteCount).map { byte in
      let word = ActivityLayout.word(text, byte / 8 * 8).pointee.load(ordering: .relaxed)
      return UInt8(truncatingIfNeeded: word >> UInt64(byte % 8 * 8))
    }
    return String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
  }
}
