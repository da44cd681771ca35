import FoundationEssentials
import Glibc
import Synchronization

/// What a worker has been promised, in memory that outlives it: a file that it and the checker map.
///
/// A number is written before an operation begins and after it has returned, so that whatever moment a process is killed
/// at, the file tells what must hold. Under the recorder each change is also put into the recorded stream, between the
/// writes to the disk that came before and after it.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
final class Ledger: @unchecked Sendable {
  /// The words of a key.
  enum Word: Int, CaseIterable {
    /// The last version whose store has begun, and the last whose store has returned.
    case started, returned
    /// A removal that has returned covers versions up to this one: none of them may be found.
    case gone
    /// A purge that has begun may have covered versions up to this one: they may be missing.
    case mayBeGone
    /// The same for the removal of the key alone, which the key's own thread makes.
    case removing
    /// What a removal of all that was stored since a moment has covered: versions above the one, up to the other.
    case goneAbove, goneUpTo
    /// A flush has returned after this version was stored: it, or a later one, must be found.
    case flushed
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

  /// Writes a word by its place, as a recorded change has it.
  func set(_ index: Int, _ value: UInt64) {
    words[index].store(value, ordering: .sequentiallyConsistent)
    note?(UInt64(index), value)
  }

  /// Time of the run: it passes with each version that is taken.
  var time: UInt64 { words[0].load(ordering: .sequentiallyConsistent) }

  func takeVersion() -> UInt64 { words[0].wrappingAdd(1, ordering: .sequentiallyConsistent).newValue }

  static func date(_ time: UInt64) -> Date { Date(timeIntervalSinceReferenceDate: 800_000_000 + Double(time)) }

  var isEvicting: Bool {
    get { words[1].load(ordering: .relaxed) != 0 }
    set { words[1].store(newValue ? 1 : 0, ordering: .relaxed) }
  }

  // MARK: What must hold

  /// What is wrong with finding this version of a key, or none; nil if nothing is.
  func complaint(about key: Int, found version: UInt64?) -> String? {
    guard let version else {
      let flushed = self[.flushed, key]
      if flushed == 0 || isEvicting || max(self[.mayBeGone, key], self[.removing, key]) >= flushed { return nil }
      return "key \(key): version \(flushed) was flushed, and nothing is there"
    }
    if version > self[.started, key] { return "key \(key): version \(version) was never stored" }
    if version <= self[.gone, key] {
      return "key \(key): version \(version) is back, removed up to \(self[.gone, key])"
    }
    if version > self[.goneAbove, key], version <= self[.goneUpTo, key] {
      return "key \(key): version \(version) is back, removed since \(self[.goneAbove, key])"
    }
    if version < self[.flushed, key] {
      return "key \(key): version \(version) is there, and \(self[.flushed, key]) was flushed"
    }
    return nil
  }

  /// Takes what a checker found after a kill as the state from which the next worker goes on.
  func settle(_ key: Int, found version: UInt64?) {
    self[.flushed, key] = version ?? 0
    self[.returned, key] = version ?? 0
    // Open removals ended with their process, and what they covered is either gone or was never promised to be.
    if self[.mayBeGone, key] == .max { self[.mayBeGone, key] = time }
  }
}
