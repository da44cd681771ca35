import FoundationEssentials
import Glibc
import Synchronization

/// The state that a store must have, in a file that the worker and the checker map, so that it outlives the worker.
///
/// The worker writes a word before each operation begins and after it has returned. So the file is correct
/// at any moment at which the worker is killed. Under the recorder each change is also recorded, in order with the
/// writes to the disk.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
final class ExpectedState: @unchecked Sendable {
  /// The words of a key.
  enum Word: Int, CaseIterable {
    /// The last version whose write has begun, and the last whose write has returned.
    case started, returned
    /// The last version covered by a removal that has returned: no version up to this one may be found.
    case gone
    /// The last version that a purge in progress may have covered: versions up to this one may be missing.
    case mayBeGone
    /// The last version that a removal of this key by its own thread may have covered.
    case removing
    /// The versions covered by a purge by date: those above the first, up to the second.
    case goneAbove, goneUpTo
    /// The last version stored before a flush that has returned: it, or a later one, must be found.
    case flushed
    /// The last version covered by a soft purge that has returned: up to this one, a version that is found is stale.
    case stale
  }

  static let headerWordCount = 8
  let keyCount: Int
  private let words: UnsafeMutablePointer<Atomic<UInt64>>
  private let byteCount: Int
  private let note: (@convention(c) (UInt64, UInt64) -> Void)?

  init(path: String, keyCount: Int) {
    self.keyCount = keyCount
    byteCount = (Self.headerWordCount + keyCount * Word.allCases.count) * 8
    let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    guard descriptor >= 0, ftruncate(descriptor, off_t(byteCount)) == 0,
      let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0), memory != MAP_FAILED
    else { fail("cannot map \(path)") }
    close(descriptor)
    words = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
    note = dlsym(nil, "recorder_note").map { unsafeBitCast($0, to: (@convention(c) (UInt64, UInt64) -> Void).self) }
  }

  deinit { munmap(words, byteCount) }

  private func index(_ word: Word, _ key: Int) -> Int {
    Self.headerWordCount + key * Word.allCases.count + word.rawValue
  }

  subscript(_ word: Word, _ key: Int) -> UInt64 {
    get { words[index(word, key)].load(ordering: .sequentiallyConsistent) }
    set { set(index(word, key), newValue) }
  }

  func raise(_ word: Word, _ key: Int, to value: UInt64) {
    if self[word, key] < value { self[word, key] = value }
  }

  /// Writes a word by its index, as in a recorded change.
  func set(_ index: Int, _ value: UInt64) {
    words[index].store(value, ordering: .sequentiallyConsistent)
    note?(UInt64(index), value)
  }

  /// The current time of the run, which advances with each version.
  var time: UInt64 { words[0].load(ordering: .sequentiallyConsistent) }

  func takeVersion() -> UInt64 { words[0].wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }

  static func date(_ time: UInt64) -> Date { Date(timeIntervalSinceReferenceDate: 800_000_000 + Double(time)) }

  var isEvicting: Bool {
    get { words[1].load(ordering: .relaxed) != 0 }
    set { words[1].store(newValue ? 1 : 0, ordering: .relaxed) }
  }

  // MARK: Lookups

  /// Calls a closure that makes one lookup, and counts it before and after.
  func countingLookup<R>(_ body: () -> R) -> R {
    words[2].wrappingAdd(1, ordering: .sequentiallyConsistent)
    defer { words[3].wrappingAdd(1, ordering: .sequentiallyConsistent) }
    return body()
  }

  /// Begins to count lookups; nil ends the comparison with the directory's count.
  ///
  /// - Parameter present: The number of lookups that the counters of the directory have now.
  func countLookups(from present: Int?) {
    for (index, value) in [(4, 0), (2, 0), (3, 0), (4, present.map { $0 + 1 } ?? 0)] {
      words[index].store(UInt64(value), ordering: .sequentiallyConsistent)
    }
  }

  /// Compares the lookups of the killed worker with the counters of the directory: each thread may lose its last one.
  ///
  /// - Parameter present: The number of lookups that the counters have now; nil if the directory has no counters.
  /// - Returns: Nil if the worker did not count; otherwise whether the counters are right, and what differs.
  func comparison(withCounted present: Int?) -> (isRight: Bool, text: String)? {
    let before = words[4].load(ordering: .sequentiallyConsistent)
    guard before > 0 else { return nil }
    let begun = words[2].load(ordering: .sequentiallyConsistent)
    let ended = words[3].load(ordering: .sequentiallyConsistent)
    guard let present else { return (false, "the counters of the directory are lost") }
    let counted = present - Int(before - 1)
    return (
      (Int(ended)...Int(begun)).contains(counted), "\(counted) lookups counted, \(ended) ended, \(begun) begun"
    )
  }

  // MARK: Checking

  /// Returns why it is wrong to find this version of a key, or to find none; nil if it is correct.
  func violation(about key: Int, found version: UInt64?) -> String? {
    guard let version else {
      let flushed = self[.flushed, key]
      if flushed == 0 || isEvicting || max(self[.mayBeGone, key], self[.removing, key]) >= flushed { return nil }
      return "key \(key): version \(flushed) was flushed, but not found"
    }
    if version > self[.started, key] { return "key \(key): version \(version) was never stored" }
    if version <= self[.gone, key] {
      return "key \(key): version \(version) reappeared, removed up to \(self[.gone, key])"
    }
    if version > self[.goneAbove, key], version <= self[.goneUpTo, key] {
      return "key \(key): version \(version) reappeared, removed since \(self[.goneAbove, key])"
    }
    if version < self[.flushed, key] {
      return "key \(key): version \(version) was found, but \(self[.flushed, key]) was flushed"
    }
    return nil
  }

  /// Makes the version that a checker found after a kill the expected state for the next worker.
  func settle(_ key: Int, found version: UInt64?) {
    self[.flushed, key] = version ?? 0
    self[.returned, key] = version ?? 0
    // Removals in progress ended with their process, so they cover no version that is stored later.
    if self[.mayBeGone, key] == .max { self[.mayBeGone, key] = time }
  }
}
