public import FoundationEssentials
import Glibc
import Synchronization

/// The processes that have a directory open, in the header of the file of counters: 48 slots of ``Word``.
///
/// A process takes a free slot when it opens the directory, and its requests are counted there until it closes it. A
/// slot is free if its process has closed the directory or is dead. If all are taken, a process is not in the table.
struct ProcessTable {
  enum Word: Int {
    /// The process ID in bits 0 to 31, and the lower bits of the time at which the process started, in clock ticks
    /// since the boot, above. It tells apart two processes with the same ID.
    case owner = 0
    /// How many times the process has the directory open.
    case openCount
    /// When the process opened it, in nanoseconds since 1970.
    case openTime
    /// Requests that needed nothing from the origin, and all others.
    case hits, others
  }

  private static let offset = 1024
  private static let slotByteCount = 64
  private static let slotCount = 48

  let base: UnsafeMutableRawPointer

  private func slot(_ number: Int) -> UnsafeMutableRawPointer { base + Self.offset + number * Self.slotByteCount }

  @inline(__always)
  static func word(_ word: Word, _ slot: UnsafeMutableRawPointer) -> UnsafeMutablePointer<Atomic<UInt64>> {
    ActivityLayout.word(slot, word.rawValue * 8)
  }

  private static func value(_ word: Word, _ slot: UnsafeMutableRawPointer) -> UInt64 {
    Self.word(word, slot).pointee.load(ordering: .relaxed)
  }

  /// Adds this process. Call this with the directory's open lock.
  ///
  /// - Returns: The slot of the process; nil if there is none.
  func enter() -> UnsafeMutableRawPointer? {
    guard let owner = ProcessState(of: getpid())?.owner else { return nil }
    let slots = (0..<Self.slotCount).map { slot($0) }
    let own = slots.first { Self.value(.owner, $0) == owner && Self.value(.openCount, $0) > 0 }
    guard let slot = own ?? slots.first(where: { !Self.isTaken($0) }) else { return nil }
    if own == nil {
      for word in [Word.openCount, .hits, .others] { Self.word(word, slot).pointee.store(0, ordering: .relaxed) }
      Self.word(.openTime, slot).pointee.store(ActivityLayout.now, ordering: .relaxed)
      Self.word(.owner, slot).pointee.store(owner, ordering: .releasing)
    }
    Self.word(.openCount, slot).pointee.wrappingAdd(1, ordering: .relaxed)
    return slot
  }

  private static func isTaken(_ slot: UnsafeMutableRawPointer) -> Bool {
    value(.openCount, slot) > 0 && isAlive(owner: value(.owner, slot))
  }

  private static func isAlive(owner: UInt64) -> Bool {
    ProcessState(of: pid_t(truncatingIfNeeded: owner))?.owner == owner
  }

  /// The living processes in the table.
  var processes: [ProcessStatistics] {
    (0..<Self.slotCount).compactMap { number in
      let slot = slot(number)
      let owner = Self.value(.owner, slot)
      guard Self.value(.openCount, slot) > 0, let state = ProcessState(of: pid_t(truncatingIfNeeded: owner)),
        state.owner == owner
      else { return nil }
      let (hits, others) = (Int(clamping: Self.value(.hits, slot)), Int(clamping: Self.value(.others, slot)))
      return ProcessStatistics(
        processID: Int32(truncatingIfNeeded: owner), isSuspended: state.isSuspended,
        openTime: Date(timeIntervalSince1970: Double(Self.value(.openTime, slot)) / 1e9),
        requestCount: hits.addingReportingOverflow(others).partialValue, hitCount: hits)
    }
  }
}

/// A process as `/proc` describes it.
struct ProcessState {
  /// The number that identifies the process in a ``ProcessTable``.
  let owner: UInt64
  /// Whether a signal or a debugger has stopped it.
  let isSuspended: Bool

  /// Reads the state of a process; nil if it does not exist.
  init?(of processID: pid_t) {
    guard processID > 0 else { return nil }
    let descriptor = open("/proc/\(processID)/stat", O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var buffer = [UInt8](repeating: 0, count: 1024)
    let count = read(descriptor, &buffer, buffer.count)
    // The name of the program, in parentheses, can contain anything.
    guard count > 0, let end = buffer[..<count].lastIndex(of: UInt8(ascii: ")")) else { return nil }
    let fields = buffer[(end + 1)..<count].split(separator: UInt8(ascii: " "))
    // The first one is field 3 of proc(5), the state; the start time is field 22.
    guard fields.count > 19, let start = UInt64(String(decoding: fields[19], as: UTF8.self)) else { return nil }
    owner = UInt64(UInt32(bitPattern: processID)) | start << 32
    isSuspended = fields[0].first == UInt8(ascii: "T") || fields[0].first == UInt8(ascii: "t")
    // A zombie has closed everything.
    if fields[0].first == UInt8(ascii: "Z") { return nil }
  }
}

extension ActivityFile {
  /// The living processes in the table of processes.
  package var processes: [ProcessStatistics] { ProcessTable(base: base).processes }
}

/// A process that uses a directory.
public struct ProcessStatistics: Sendable, Hashable {
  /// The ID of the process.
  public var processID: Int32
  /// Whether a signal or a debugger has suspended it. A suspended process can hold the write lock, or a snapshot.
  public var isSuspended: Bool
  /// When it opened the directory; nil for a process that only inspects it, or one of more than 48 processes.
  public var openTime: Date?
  /// Its requests through a caching client since then, with any outcome.
  public var requestCount = 0
  /// Those that needed nothing from the origin.
  public var hitCount = 0
  /// The number of reader slots that its threads hold.
  public var readerSlotCount = 0
  /// The number of these that have a snapshot now.
  public var snapshotCount = 0
  /// How many commits its oldest snapshot is behind. The pages freed since then cannot be reused. 0 without a snapshot.
  public var snapshotAge = 0
}

extension ProcessStatistics {
  /// Creates the statistics of a process that is not in the table; nil if it does not exist.
  package init?(processID: Int32) {
    guard let state = ProcessState(of: processID) else { return nil }
    self.init(processID: processID, isSuspended: state.isSuspended, openTime: nil)
  }
}
