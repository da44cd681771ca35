import CXXHash
import CacheModel
public import FoundationEssentials
import Glibc
import Synchronization

/// A response that was not stored: the rule, and the time.
public struct StorageRefusal: Sendable, Hashable {
  /// The ID of the rule.
  public var rule: String
  /// The time, in whole seconds.
  public var time: Date
}

/// The last responses that were not stored, by the digest of their key: a table in the file of counters.
///
/// It has 80 sets of 8 words. The digest of a key selects the set. A word has the time in seconds since 1970 in bits 0
/// to 31, the slot of the rule in bits 32 to 38, and 25 bits of the digest above. 0 is an empty word. A new refusal
/// replaces that of the same key, or the oldest of its set. One word is written at once, so no reader sees parts of two
/// refusals. Another key has the same digest with a probability of 8 in 2²⁵.
///
/// URLs are private, so only digests are written, with a random seed of the file.
struct RecentRefusals {
  private static let setCount: UInt64 = 80
  private static let setWordCount = 8
  private static let ruleBits: UInt64 = 32
  private static let digestBits: UInt64 = 39

  let base: UnsafeMutableRawPointer

  private func set(of key: RequestKey) -> (words: UnsafeMutableRawPointer, tag: UInt64) {
    let seed = ActivityLayout.word(base, ActivityLayout.HeaderWord.digestSeed * 8).pointee.load(ordering: .relaxed)
    let digest = key.bytes.withUnsafeBytes { XXH3_64bits_withSeed($0.baseAddress, $0.count, seed) }
    let number = Int(digest % Self.setCount)
    return (
      base + ActivityLayout.recentRefusalsOffset + number * Self.setWordCount * 8, digest >> Self.digestBits
    )
  }

  /// Remembers a refusal now.
  ///
  /// - Parameter rule: The slot of the rule in the file.
  func record(rule: Int, of key: RequestKey) {
    let (words, tag) = set(of: key)
    var target = ActivityLayout.word(words, 0)
    var oldest = UInt32.max
    for index in 0..<Self.setWordCount {
      let word = ActivityLayout.word(words, index * 8)
      let present = word.pointee.load(ordering: .relaxed)
      if present == 0 || present >> Self.digestBits == tag {
        target = word
        break
      }
      let time = UInt32(truncatingIfNeeded: present)
      if time < oldest { (oldest, target) = (time, word) }
    }
    let seconds = UInt32(clamping: ActivityLayout.now / 1_000_000_000)
    target.pointee.store(
      UInt64(seconds) | UInt64(rule) << Self.ruleBits | tag << Self.digestBits, ordering: .relaxed)
  }

  /// Returns the last refusal for a key: the slot of its rule, and the time; nil if none is known.
  func last(of key: RequestKey) -> (rule: Int, time: Date)? {
    let (words, tag) = set(of: key)
    for index in 0..<Self.setWordCount {
      let word = ActivityLayout.word(words, index * 8).pointee.load(ordering: .relaxed)
      guard word != 0, word >> Self.digestBits == tag else { continue }
      let rule = Int(word >> Self.ruleBits) & (ActivityLayout.refusalCount - 1)
      return (rule, Date(timeIntervalSince1970: Double(UInt32(truncatingIfNeeded: word))))
    }
    return nil
  }
}

extension ActivityFile {
  /// Returns the last refusal to store a response for a key, by any process; nil if none is known.
  ///
  /// The table holds 640 of them. Costs a digest of the key.
  package func lastRefusal(of key: RequestKey) -> StorageRefusal? {
    guard let (slot, time) = RecentRefusals(base: base).last(of: key) else { return nil }
    let rule = rule(inSlot: slot)
    // A free slot: the word is corrupt.
    return rule.isEmpty ? nil : StorageRefusal(rule: rule, time: time)
  }
}
