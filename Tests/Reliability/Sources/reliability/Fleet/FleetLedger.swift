import Glibc
import Synchronization

/// The purges and counts of all machines of a scenario, in a file that they map.
///
/// Every request at the origin and every purge takes the next tick of a shared counter, so their order is known. A purge
/// covers the responses of earlier ticks. When it has returned, it raises the floors of its keys: no request that begins
/// later may get a response of a tick below them.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
final class FleetLedger: @unchecked Sendable {
  /// The shared counts.
  enum Count: Int, CaseIterable {
    case tick, isOver, requests, hits, shared, purges, purgesByWait, unconfirmed, unposted, failures, violations
    case longestPurge
  }

  /// The words of a key.
  private enum KeyWord: Int, CaseIterable {
    /// The tick of the last hard purge that has returned, of the last soft one, and of the last hard one that has begun.
    case hard, soft, hardBegun
  }

  private typealias Word = Atomic<UInt64>
  private static let headerWordCount = 64
  private let words: UnsafeMutablePointer<Word>
  private let byteCount: Int

  init(path: String) {
    byteCount = (Self.headerWordCount + FleetContent.keyCount * KeyWord.allCases.count) * 8
    words = mapShared(path, byteCount: byteCount).assumingMemoryBound(to: Word.self)
  }

  deinit { munmap(words, byteCount) }

  private func word(_ word: KeyWord, _ key: Int) -> UnsafeMutablePointer<Word> {
    words + Self.headerWordCount + key * KeyWord.allCases.count + word.rawValue
  }

  private func load(_ kind: KeyWord, _ key: Int) -> UInt64 {
    word(kind, key).pointee.load(ordering: .sequentiallyConsistent)
  }

  private func raise(_ kind: KeyWord, _ key: Int, to tick: UInt64) {
    word(kind, key).pointee.max(tick, ordering: .sequentiallyConsistent)
  }

  // MARK: Counts

  subscript(_ count: Count) -> UInt64 { words[count.rawValue].load(ordering: .sequentiallyConsistent) }

  @discardableResult
  func add(_ count: Count, _ difference: UInt64 = 1) -> UInt64 {
    words[count.rawValue].wrappingAdd(difference, ordering: .sequentiallyConsistent).newValue
  }

  func raise(_ count: Count, to value: UInt64) {
    words[count.rawValue].max(value, ordering: .sequentiallyConsistent)
  }

  func takeTick() -> UInt64 { add(.tick) }

  /// Tells the machines to stop.
  func end() { raise(.isOver, to: 1) }
  var isOver: Bool { self[.isOver] > 0 }

  // MARK: Leaving

  /// Whether a machine has been told to close its cache. Each has a word of its own behind the counts.
  func isLeaving(_ machine: Int) -> Bool { words[32 + machine].load(ordering: .sequentiallyConsistent) > 0 }
  func setLeaving(_ machine: Int, _ isLeaving: Bool) {
    words[32 + machine].store(isLeaving ? 1 : 0, ordering: .sequentiallyConsistent)
  }

  // MARK: Purges

  /// The age limits of a response to a request that begins now.
  struct Floor: Sendable {
    /// The tick of the last hard purge: the response was made later.
    var hard: UInt64
    /// The tick of the last soft purge: the response was made or validated later.
    var soft: UInt64
  }

  func floor(_ key: Int) -> Floor { Floor(hard: load(.hard, key), soft: load(.soft, key)) }

  /// The tick of the last hard purge of a key that has begun: the origin has a new response since then.
  func hardPurgeBegun(_ key: Int) -> UInt64 { load(.hardBegun, key) }

  /// Records a purge before and after it.
  ///
  /// - Parameter body: Purges, and returns whether all machines obey.
  func purge(_ keys: [Int], isSoft: Bool, _ body: () async -> Bool) async {
    let tick = takeTick()
    if !isSoft { for key in keys { raise(.hardBegun, key, to: tick) } }
    guard await body() else { return }
    for key in keys { raise(isSoft ? .soft : .hard, key, to: tick) }
  }
}

/// Maps a file that processes share, and creates it if needed.
func mapShared(_ path: String, byteCount: Int) -> UnsafeMutableRawPointer {
  let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
  guard descriptor >= 0, ftruncate(descriptor, off_t(byteCount)) == 0,
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), memory != MAP_FAILED
  else { fail("cannot map \(path)") }
  close(descriptor)
  return memory
}
