import FoundationEssentials
import Glibc
import Synchronization

/// The expected content of a store: the writes, removals and flushes of all processes, in memory that they share.
///
/// A slot is one variant of one cache key. Each event takes the next position of a shared counter, so the order of the
/// events of all processes is known. A version is the position at which the write of a response began, a revision the
/// one at which an update after a validation began. A process records an event before the operation begins and after it
/// has returned, so the ledger is right at any moment at which a process is killed.
///
/// Every test of a store under load uses it: it records in `Ledger+Events.swift`, and judges each response in
/// `Ledger+Judging.swift`.
///
/// `@unchecked Sendable`: the memory lives as long as the object, and every access to it is atomic.
package final class Ledger: @unchecked Sendable {
  /// The sizes of the tables.
  package struct Shape: Sendable {
    package var slotCount: Int
    /// The number of processes that write or flush, which have the numbers below it.
    package var processCount: Int
    /// The number of latest positions of which details are kept.
    package var entryCount: Int

    package init(slotCount: Int, processCount: Int = 1, entryCount: Int = 1 << 20) {
      (self.slotCount, self.processCount, self.entryCount) = (slotCount, processCount, entryCount)
    }
  }

  typealias Word = Atomic<UInt64>

  enum HeaderWord: Int {
    case position, isEvicting, isExact, isFaulty
    case lookupsBegun, lookupsEnded, lookupsBefore
    case hardRangeCount, softRangeCount
  }

  /// The words of a slot.
  enum SlotWord: Int, CaseIterable {
    /// The call of the last hard purge that has returned, except purges by date.
    case hardCalled
    /// The end of the last hard purge that may have covered a response.
    case hardEnded
    /// The same for soft purges.
    case softCalled, softEnded
    /// The last version whose write has begun.
    case started
    /// Versions and revisions up to this position may be lost, and older ones may be found instead.
    case unsure
  }

  /// The words of a slot and a process.
  enum ProcessWord: Int, CaseIterable {
    /// The newest version or revision whose store or update the process was told to be accepted.
    case accepted
    /// The newest one that was accepted before a flush began that has returned.
    case flushed
    /// The number of the process's purges in progress that may cover the slot.
    case hardOpen, softOpen
  }

  /// The words of a position at which a write or an update began.
  enum EntryWord: Int, CaseIterable {
    case position
    /// The slot and the process.
    case owner
    /// When the call began, and when it ended; 0 if it has not ended.
    case began, ended
    /// Between which positions the response was current at the origin. Later purges cover it, earlier ones do not.
    case lower, upper
    /// The bits of the earliest date at which the response may have been stored, in seconds.
    case date
    /// When a flush returned that made it durable; 0 if none has.
    case durable
    /// When the origin last confirmed that it is current.
    case validated
  }

  private static let headerWordCount = 64
  private static let firstUserWord = 16
  /// The number of words of the owner; see ``word(_:)``.
  package static let userWordCount = headerWordCount - firstUserWord
  /// The number of purges by date that are kept, each with its date, its call and its end.
  static let rangeCount = 16
  private static let rangeWordCount = 2 * 3 * rangeCount

  package let shape: Shape
  private let words: UnsafeMutablePointer<Word>
  private let byteCount: Int
  /// The function of the recorder that records a change in order with the writes to the disk; nil without it.
  private let note: (@convention(c) (UInt64, UInt64) -> Void)?

  /// Maps a ledger.
  ///
  /// - Parameter path: A file that processes share, which is created if needed; nil for memory that forked children
  ///   share.
  package init(path: String? = nil, _ shape: Shape) {
    self.shape = shape
    byteCount =
      (Self.headerWordCount + Self.rangeWordCount
        + shape.slotCount * (SlotWord.allCases.count + shape.processCount * ProcessWord.allCases.count)
        + shape.entryCount * EntryWord.allCases.count) * 8
    words = mapShared(path, byteCount: byteCount).assumingMemoryBound(to: Word.self)
    note = dlsym(nil, "recorder_note").map { unsafeBitCast($0, to: (@convention(c) (UInt64, UInt64) -> Void).self) }
  }

  deinit { munmap(words, byteCount) }

  // MARK: Words

  func load(_ index: Int) -> UInt64 { words[index].load(ordering: .sequentiallyConsistent) }

  /// Writes a word by its index, as in a recorded change.
  package func set(_ index: Int, _ value: UInt64) {
    words[index].store(value, ordering: .sequentiallyConsistent)
    note?(UInt64(index), value)
  }

  func raise(_ index: Int, to value: UInt64) {
    let raised = words[index].max(value, ordering: .sequentiallyConsistent).newValue
    note?(UInt64(index), raised)
  }

  @discardableResult
  func add(_ index: Int, _ difference: UInt64 = 1) -> UInt64 {
    let sum = words[index].wrappingAdd(difference, ordering: .sequentiallyConsistent).newValue
    note?(UInt64(index), sum)
    return sum
  }

  func index(_ word: SlotWord, _ slot: Int) -> Int {
    Self.headerWordCount + Self.rangeWordCount + slot * SlotWord.allCases.count + word.rawValue
  }

  func index(_ word: ProcessWord, _ slot: Int, by process: Int) -> Int {
    Self.headerWordCount + Self.rangeWordCount + shape.slotCount * SlotWord.allCases.count
      + (process * shape.slotCount + slot) * ProcessWord.allCases.count + word.rawValue
  }

  func index(_ word: EntryWord, _ position: UInt64) -> Int {
    Self.headerWordCount + Self.rangeWordCount
      + shape.slotCount * (SlotWord.allCases.count + shape.processCount * ProcessWord.allCases.count)
      + Int(position % UInt64(shape.entryCount)) * EntryWord.allCases.count + word.rawValue
  }

  /// The index of the first word of a purge by date.
  func rangeIndex(_ number: UInt64, isSoft: Bool) -> Int {
    Self.headerWordCount + ((isSoft ? Self.rangeCount : 0) + Int(number % UInt64(Self.rangeCount))) * 3
  }

  func load(_ word: SlotWord, _ slot: Int) -> UInt64 { load(index(word, slot)) }
  func load(_ word: ProcessWord, _ slot: Int, by process: Int) -> UInt64 { load(index(word, slot, by: process)) }

  /// The highest value of the processes.
  func highest(_ word: ProcessWord, _ slot: Int) -> UInt64 {
    (0..<shape.processCount).reduce(0) { max($0, load(word, slot, by: $1)) }
  }

  /// A word that belongs to the ledger's user, with a number below ``userWordCount``.
  package func word(_ number: Int) -> UInt64 { load(Self.index(ofWord: number)) }
  package static func index(ofWord number: Int) -> Int { firstUserWord + number }
  package func setWord(_ number: Int, _ value: UInt64) { set(Self.firstUserWord + number, value) }
  package func raiseWord(_ number: Int, to value: UInt64) { raise(Self.firstUserWord + number, to: value) }
  @discardableResult
  package func addToWord(_ number: Int, _ difference: UInt64 = 1) -> UInt64 {
    add(Self.firstUserWord + number, difference)
  }

  private func flag(_ word: HeaderWord) -> Bool { load(word.rawValue) != 0 }
  private func setFlag(_ word: HeaderWord, _ value: Bool) { set(word.rawValue, value ? 1 : 0) }

  /// Whether the store evicts, so that any response may be missing.
  package var isEvicting: Bool {
    get { flag(.isEvicting) }
    set { setFlag(.isEvicting, newValue) }
  }

  /// Whether one thread makes all calls, so that nothing overlaps and dates are exact.
  package var isExact: Bool {
    get { flag(.isExact) }
    set { setFlag(.isExact, newValue) }
  }

  /// Whether the disk fails, so that accepted writes may be lost until a flush succeeds.
  package var isFaulty: Bool {
    get { flag(.isFaulty) }
    set { setFlag(.isFaulty, newValue) }
  }

  // MARK: Positions

  /// The index of the word with the present position.
  package static let positionIndex = HeaderWord.position.rawValue

  /// The present position.
  package var position: UInt64 { load(HeaderWord.position.rawValue) }

  package func takePosition() -> UInt64 { add(HeaderWord.position.rawValue) }

  /// The date of a position for a store's clock. It is in the past, and positions are milliseconds apart.
  package static func date(_ position: UInt64) -> Date {
    Date(timeIntervalSinceReferenceDate: 600_000_000 + Double(position) / 1000)
  }

  // MARK: Lookups

  /// Calls a closure that makes one lookup, and counts it before and after.
  package func countingLookup<R>(_ body: () -> R) -> R {
    add(HeaderWord.lookupsBegun.rawValue)
    defer { add(HeaderWord.lookupsEnded.rawValue) }
    return body()
  }

  /// Begins to count lookups; nil ends the comparison with the directory's count.
  ///
  /// - Parameter present: The number of lookups that the counters of the directory have now.
  package func countLookups(from present: Int?) {
    for word in [HeaderWord.lookupsBefore, .lookupsBegun, .lookupsEnded] { set(word.rawValue, 0) }
    set(HeaderWord.lookupsBefore.rawValue, present.map { UInt64($0) + 1 } ?? 0)
  }

  /// Compares the lookups of a killed process with the counters of the directory: each thread may lose its last one.
  ///
  /// - Parameter present: The number of lookups that the counters have now; nil if the directory has no counters.
  /// - Returns: Nil if no lookups were counted; otherwise whether the counters are right, and what differs.
  package func comparison(withCounted present: Int?) -> (isRight: Bool, text: String)? {
    let before = load(HeaderWord.lookupsBefore.rawValue)
    guard before > 0 else { return nil }
    let begun = load(HeaderWord.lookupsBegun.rawValue)
    let ended = load(HeaderWord.lookupsEnded.rawValue)
    guard let present else { return (false, "the counters of the directory are lost") }
    let counted = present - Int(before - 1)
    return (
      (Int(ended)...Int(begun)).contains(counted), "\(counted) lookups counted, \(ended) ended, \(begun) begun"
    )
  }
}

/// Maps a file that processes share, and creates it if needed; nil for memory that forked children share.
package func mapShared(_ path: String?, byteCount: Int) -> UnsafeMutableRawPointer {
  var descriptor: CInt = -1
  if let path {
    descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    precondition(descriptor >= 0 && ftruncate(descriptor, off_t(byteCount)) == 0, "cannot make \(path)")
  }
  defer { if descriptor >= 0 { close(descriptor) } }
  let flags = MAP_SHARED | (path == nil ? MAP_ANONYMOUS | MAP_NORESERVE : 0)
  guard let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, flags, descriptor, 0), memory != MAP_FAILED else {
    fatalError("cannot map \(byteCount) bytes of \(path ?? "memory")")
  }
  return memory
}
