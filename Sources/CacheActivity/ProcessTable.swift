import CacheModel
public import FoundationEssentials
import Glibc
import Synchronization

/// The processes that have a directory open, and what they counted: 48 rows in the file of counters, and a last one
/// that all other processes share.
///
/// A process takes a free row when it opens the directory. A row is free if its process has closed the directory or is
/// dead. Its counts stay: the next process of the row goes on from them, and records where it began. So the sum of all
/// rows is that of the directory, whenever a process dies.
///
/// A row has 64 bytes of ``Word``, then 4 stripes of ``Count``, each in a cache line of its own. A thread counts in one
/// of them.
struct ProcessTable {
  enum Word: Int {
    /// The process ID in bits 0 to 31, and the lower bits of the time at which the process started, in clock ticks
    /// since the boot, above. It tells apart two processes with the same ID.
    case owner = 0
    /// How many times the process has the directory open.
    case openCount
    /// When the process opened it, in nanoseconds since 1970.
    case openTime
    /// The sums of the row's hits and other requests at that time.
    case earlierHits, earlierRequests
  }

  enum Count: Int, CaseIterable {
    case freshHits = 0
    case staleHits
    case hitBytes
    case memoryLookups
    case diskLookups
    case missedLookups
    case otherRequests
  }

  private static let offset = 1024
  private static let stripeBits: UInt = 2
  private static let rowByteCount = 64 + 64 << Int(stripeBits)
  static let ownRowCount = 48

  let base: UnsafeMutableRawPointer

  func row(_ number: Int) -> UnsafeMutableRawPointer { base + Self.offset + number * Self.rowByteCount }

  /// The row of processes that have none of their own.
  var sharedRow: UnsafeMutableRawPointer { row(Self.ownRowCount) }

  @inline(__always)
  static func word(_ word: Word, _ row: UnsafeMutableRawPointer) -> UnsafeMutablePointer<Atomic<UInt64>> {
    ActivityLayout.word(row, word.rawValue * 8)
  }

  private static func value(_ word: Word, _ row: UnsafeMutableRawPointer) -> UInt64 {
    Self.word(word, row).pointee.load(ordering: .relaxed)
  }

  // MARK: Counts

  /// The stripe of the calling thread.
  @inline(__always)
  static func stripe(_ row: UnsafeMutableRawPointer) -> UnsafeMutableRawPointer {
    row + 64 + ThreadStripe.number(bits: stripeBits) * 64
  }

  @inline(__always)
  static func add(_ number: UInt64, _ count: Count, _ stripe: UnsafeMutableRawPointer) {
    ActivityLayout.word(stripe, count.rawValue * 8).pointee.wrappingAdd(number, ordering: .relaxed)
  }

  /// Sums wrap around, because a corrupt count must not trap.
  private static func total(_ counts: [Count], _ row: UnsafeMutableRawPointer) -> UInt64 {
    counts.reduce(0) { total, count in
      (1...1 << Int(stripeBits)).reduce(total) {
        $0 &+ ActivityLayout.word(row, $1 * 64 + count.rawValue * 8).pointee.load(ordering: .relaxed)
      }
    }
  }

  private static func hits(_ row: UnsafeMutableRawPointer) -> UInt64 { total([.freshHits, .staleHits], row) }

  /// Returns the sum of a count over all rows.
  func total(_ count: Count) -> Int {
    Int(clamping: (0...Self.ownRowCount).reduce(0) { $0 &+ Self.total([count], row($1)) })
  }

  /// The offsets of all counts in the file.
  static var countOffsets: [Int] {
    (0...ownRowCount).flatMap { number in
      (1...1 << Int(stripeBits)).flatMap { stripe in
        Count.allCases.map { offset + number * rowByteCount + stripe * 64 + $0.rawValue * 8 }
      }
    }
  }

  // MARK: Processes

  /// Adds this process. Call this with the directory's open lock.
  ///
  /// - Returns: The row of the process; nil if there is none.
  func enter() -> UnsafeMutableRawPointer? {
    guard let owner = ProcessState(of: getpid())?.owner else { return nil }
    let rows = (0..<Self.ownRowCount).map { row($0) }
    let own = rows.first { Self.value(.owner, $0) == owner && Self.value(.openCount, $0) > 0 }
    guard let row = own ?? rows.first(where: { !Self.isTaken($0) }) else { return nil }
    if own == nil {
      Self.word(.openCount, row).pointee.store(0, ordering: .relaxed)
      Self.word(.earlierHits, row).pointee.store(Self.hits(row), ordering: .relaxed)
      Self.word(.earlierRequests, row).pointee.store(Self.total([.otherRequests], row), ordering: .relaxed)
      Self.word(.openTime, row).pointee.store(ActivityLayout.now, ordering: .relaxed)
      Self.word(.owner, row).pointee.store(owner, ordering: .releasing)
    }
    Self.word(.openCount, row).pointee.wrappingAdd(1, ordering: .relaxed)
    return row
  }

  private static func isTaken(_ row: UnsafeMutableRawPointer) -> Bool {
    value(.openCount, row) > 0 && isAlive(owner: value(.owner, row))
  }

  private static func isAlive(owner: UInt64) -> Bool {
    ProcessState(of: pid_t(truncatingIfNeeded: owner))?.owner == owner
  }

  /// The living processes in the table.
  var processes: [ProcessStatistics] {
    (0..<Self.ownRowCount).compactMap { number in
      let row = row(number)
      let owner = Self.value(.owner, row)
      guard Self.value(.openCount, row) > 0, let state = ProcessState(of: pid_t(truncatingIfNeeded: owner)),
        state.owner == owner
      else { return nil }
      let hits = Int(clamping: Self.hits(row) &- Self.value(.earlierHits, row))
      let others = Int(clamping: Self.total([.otherRequests], row) &- Self.value(.earlierRequests, row))
      return ProcessStatistics(
        processID: Int32(truncatingIfNeeded: owner), isSuspended: state.isSuspended,
        openTime: Date(timeIntervalSince1970: Double(Self.value(.openTime, row)) / 1e9),
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
