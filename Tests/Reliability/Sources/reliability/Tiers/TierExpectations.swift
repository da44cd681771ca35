import Foundation
import Glibc
import Synchronization

/// The writes and purges of all processes of a scenario, in a file that they map.
///
/// Every event takes the next tick of a shared counter, so the order of the events of all processes is known.
/// A tick is also the time of the caches' clock. A version is the tick at which its write began, or at which its
/// request reached the origin.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
final class TierExpectations: @unchecked Sendable {
  private typealias Word = Atomic<UInt64>

  /// The words of a key.
  private enum KeyWord: Int, CaseIterable {
    /// The last purge that has returned and covers the key: the tick of its call, its kind and its process.
    case purged
    /// The same for soft purges.
    case softPurged
    /// The number of purges in progress that may revoke the store permit of a fetch of the key, and the tick at which
    /// the last of them ended.
    case purgesUnderWay, purgeEnded
  }

  static let largestTick: UInt64 = 2 << 20
  private static let headerWordCount = 8
  /// The words of a tick: when the write of the version began and ended, and when the version was last validated.
  private static let tickColumnCount = 3
  let keyCount: Int
  private let processCount: Int
  private let words: UnsafeMutablePointer<Word>
  private let byteCount: Int

  /// Maps the file and creates it if needed.
  ///
  /// - Parameter processCount: The number of processes; each has a list of the newest versions that it has stored.
  init(path: String, keyCount: Int, processCount: Int) {
    self.keyCount = keyCount
    self.processCount = processCount
    let wordCount =
      Self.headerWordCount + keyCount * (KeyWord.allCases.count + processCount)
      + Self.tickColumnCount * Int(Self.largestTick)
    byteCount = wordCount * 8
    let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard descriptor >= 0, ftruncate(descriptor, off_t(byteCount)) == 0,
      let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), memory != MAP_FAILED
    else { fail("cannot map \(path)") }
    close(descriptor)
    words = memory.assumingMemoryBound(to: Word.self)
  }

  deinit { munmap(words, byteCount) }

  private func keyWord(_ word: KeyWord, _ key: Int) -> UnsafeMutablePointer<Word> {
    words + Self.headerWordCount + key * KeyWord.allCases.count + word.rawValue
  }

  private func newestWord(_ process: Int, _ key: Int) -> UnsafeMutablePointer<Word> {
    words + Self.headerWordCount + keyCount * (KeyWord.allCases.count + process) + key
  }

  private func tickWord(_ column: Int, _ tick: UInt64) -> UnsafeMutablePointer<Word> {
    let first = Self.headerWordCount + keyCount * (KeyWord.allCases.count + processCount)
    return words + first + Self.tickColumnCount * Int(min(tick, Self.largestTick - 1)) + column
  }

  private func raise(_ word: UnsafeMutablePointer<Word>, to value: UInt64) {
    word.pointee.max(value, ordering: .sequentiallyConsistent)
  }

  // MARK: Time

  var tick: UInt64 { words[0].load(ordering: .sequentiallyConsistent) }

  func takeTick() -> UInt64 { words[0].wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }

  /// Returns the date of a tick, which is in the past for the tool.
  static func date(_ tick: UInt64) -> Date { Date(timeIntervalSinceReferenceDate: 600_000_000 + Double(tick) / 1000) }

  /// Whether the space for versions is used up, so that the scenario has to end.
  var isFull: Bool { tick > Self.largestTick - 1000 }

  // MARK: Writes

  /// Records the tick at which the call that stores or fetches a version began.
  func noteBegin(_ began: UInt64, of version: UInt64) {
    tickWord(0, version).pointee.store(began, ordering: .sequentiallyConsistent)
  }

  func noteEnd(of version: UInt64) {
    tickWord(1, version).pointee.store(takeTick(), ordering: .sequentiallyConsistent)
  }

  func began(_ version: UInt64) -> UInt64 { tickWord(0, version).pointee.load(ordering: .sequentiallyConsistent) }

  /// Returns the tick at which the write of a version returned, or 0 if it has not returned.
  func ended(_ version: UInt64) -> UInt64 { tickWord(1, version).pointee.load(ordering: .sequentiallyConsistent) }

  /// Records that a request to validate a version reached the origin at a tick.
  func noteValidation(of version: UInt64, at tick: UInt64) {
    raise(tickWord(2, version), to: tick)
  }

  /// Returns the tick at which the last request to validate a version reached the origin, or 0.
  func validated(_ version: UInt64) -> UInt64 { tickWord(2, version).pointee.load(ordering: .sequentiallyConsistent) }

  func newest(_ key: Int, process: Int) -> UInt64 {
    newestWord(process, key).pointee.load(ordering: .sequentiallyConsistent)
  }

  func raiseNewest(_ key: Int, process: Int, to version: UInt64) {
    raise(newestWord(process, key), to: version)
  }

  // MARK: Purges

  struct LastPurge {
    /// The tick at which the purge was called, or 0 if there was none.
    var called: UInt64
    var kind: Int
    var process: Int
  }

  func purged(_ key: Int, isSoft: Bool = false) -> LastPurge {
    let word = keyWord(isSoft ? .softPurged : .purged, key).pointee.load(ordering: .sequentiallyConsistent)
    return LastPurge(called: word >> 16, kind: Int(word >> 8 & 0xff), process: Int(word & 0xff))
  }

  /// The last purge by date, which covers responses stored after the first tick and before the second.
  var purgedSince: (after: UInt64, called: UInt64) { purgedSince(isSoft: false) }

  func purgedSince(isSoft: Bool) -> (after: UInt64, called: UInt64) {
    let word = words[isSoft ? 2 : 1].load(ordering: .sequentiallyConsistent)
    return (word & 0xffff_ffff, word >> 32)
  }

  /// Returns whether a purge that is in progress, or ended at the tick or later, may have revoked the store permit of a
  /// fetch of the key.
  func mayBeRevoked(_ key: Int, since tick: UInt64) -> Bool {
    // A purge records its end before it decrements the count, so reading the count first misses no purge.
    if keyWord(.purgesUnderWay, key).pointee.load(ordering: .sequentiallyConsistent) > 0 { return true }
    return keyWord(.purgeEnded, key).pointee.load(ordering: .sequentiallyConsistent) >= tick
  }

  /// Runs a purge, and records it before it begins and after it has returned.
  ///
  /// - Parameter body: Makes the purge and returns whether it took effect.
  func purge(
    _ purge: TierPurge, isSoft: Bool, of content: TierContent, process: Int, _ body: () -> Bool
  ) {
    let keys = 0..<keyCount
    let revocable = keys.filter { purge.mayRevoke($0, content) }
    for key in revocable { keyWord(.purgesUnderWay, key).pointee.add(1, ordering: .sequentiallyConsistent) }
    let called = takeTick()
    if body() {
      if case .since(let tick) = purge {
        raise(words + (isSoft ? 2 : 1), to: called << 32 | tick)
      } else {
        let word = called << 16 | UInt64(purge.kind) << 8 | UInt64(process)
        for key in keys where purge.covers(key, content) {
          raise(keyWord(isSoft ? .softPurged : .purged, key), to: word)
        }
      }
    }
    let ended = takeTick()
    for key in revocable {
      raise(keyWord(.purgeEnded, key), to: ended)
      keyWord(.purgesUnderWay, key).pointee.subtract(1, ordering: .sequentiallyConsistent)
    }
  }
}
