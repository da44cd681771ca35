import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import Synchronization

/// Runs operations of the contract test on one store, through its public interface, and judges each result by the
/// ledger.
package final class ContractRun {
  package struct Configuration: Sendable, Codable {
    /// Whether the capacity is far below what is stored. Otherwise no response may be missing.
    package var isEvicting: Bool
    /// Whether writes and syncs fail at times.
    package var hasFaults: Bool
    /// Whether the store's threads write and evict. Otherwise operations do, so that a run can be repeated.
    package var hasThreads: Bool

    package init(isEvicting: Bool = false, hasFaults: Bool = false, hasThreads: Bool = false) {
      (self.isEvicting, self.hasFaults, self.hasThreads) = (isEvicting, hasFaults, hasThreads)
    }
  }

  /// A response that was looked up, for a later update.
  struct Held {
    let response: StoredResponse
    let identity: ContractContent.Identity
    let basis: Ledger.Basis
  }

  /// The time at which responses are stored.
  final class Clock: Sendable {
    private let time = Mutex(Ledger.date(0))
    var now: Date {
      get { time.withLock { $0 } }
      set { time.withLock { $0 = newValue } }
    }
  }

  /// The last lines of the history. The store's threads log, too.
  private final class Notes: Sendable {
    private let kept = Mutex<[String]>([])
    var lines: [String] { kept.withLock { $0 } }

    func append(_ line: String) {
      kept.withLock { kept in
        if kept.count == 2000 { kept.removeFirst(1000) }
        kept.append(line)
      }
    }
  }

  /// Words of the ledger: the numbers of failures that operations have begun and ended to cause, and the generation in
  /// use. A process may open the data between the two.
  private static let begunFailureWord = 2
  private static let endedFailureWord = 3
  private static let generationWord = 4

  let configuration: Configuration
  let ledger: Ledger
  /// The number of this process in the ledger.
  let process: Int
  /// Whether this process alone uses the directory, so that statistics can be compared.
  let isAlone: Bool
  let directory: String
  let clock = Clock()
  private let options: ResponseStore.Options
  /// The number of failures that operations had ended to cause when the store was opened.
  private var failureCount: UInt64 = 0
  /// The store; nil while it is closed.
  private var opened: ResponseStore?
  var capacity: Int
  var held: [Held] = []
  var tokens: [(token: RemovalToken, basis: Ledger.Basis)] = []
  var arriving: [Arriving] = []
  var counts = ContractCounts()
  private let notes = Notes()
  /// The operations and the store's log so far, for the report of a violation.
  package var history: [String] { notes.lines }

  static func capacities(isEvicting: Bool) -> [Int] {
    isEvicting ? [2 << 20, 3 << 20, 1 << 20] : [96 << 20, 128 << 20]
  }

  package init(
    _ configuration: Configuration, directory: String, ledger: Ledger, process: Int = 0, isAlone: Bool = true
  ) throws(Ledger.Violation) {
    (self.configuration, self.directory, self.ledger) = (configuration, directory, ledger)
    (self.process, self.isAlone) = (process, isAlone)
    capacity = Self.capacities(isEvicting: configuration.isEvicting)[0]
    var options = ResponseStore.Options(capacityByteCount: capacity)
    if isAlone {
      options.clock = { [clock] in clock.now }
    } else {
      // Processes share the time, so that none stores before the date of another one's purge.
      options.clock = { Ledger.date(ledger.position) }
    }
    options.runsInBackground = configuration.hasThreads
    // No write may be dropped because the disk is slow.
    options.fullQueueTimeout = .seconds(60)
    self.options = options
    try open()
  }

  private static func open(
    _ directory: String, _ options: ResponseStore.Options, isFaulty: Bool
  ) throws(Ledger.Violation) -> ResponseStore {
    var failureCount = 0
    while true {
      do throws(StoreError) {
        return try ResponseStore.open(directory: directory, options: options)
      } catch {
        // Injected errors may hit the opening.
        failureCount += 1
        ContractFaults.clear()
        guard failureCount < (isFaulty ? 3 : 0) else {
          throw Ledger.Violation(.unsound, "the directory cannot be opened: \(error)")
        }
        sleepBriefly()
      }
    }
  }

  static func sleepBriefly() { usleep(10_000) }

  /// Creates the ledger of a test.
  package static func ledger(processCount: Int = 1, isEvicting: Bool) -> Ledger {
    let ledger = Ledger(
      .init(slotCount: ContractContent.slotCount, processCount: processCount, entryCount: 1 << 16))
    ledger.isEvicting = isEvicting
    ledger.isExact = processCount == 1
    return ledger
  }

  func note(_ text: @autoclosure () -> String) {
    notes.append(text())
  }

  func unsound(_ text: String) -> Ledger.Violation { Ledger.Violation(.unsound, text) }

  // MARK: Operations

  /// Does one operation.
  package func perform(_ operation: ContractOperation) throws(Ledger.Violation) {
    if isAlone { clock.now += 0.001 }
    switch operation.kind {
    case .store: storeOne(operation)
    case .arrive: try arrive(operation)
    case .storeMany: storeMany(operation)
    case .lookup: try lookUp(operation)
    case .update: update(operation)
    case .remove: try remove(operation)
    case .takeToken: takeToken()
    case .write where !configuration.hasThreads:
      note("write")
      store.writePending()
    case .maintain where !configuration.hasThreads:
      note("maintain")
      store.maintain()
    case .write, .maintain: break
    case .flush: try flush()
    case .reopen: try reopen()
    case .setCapacity: setCapacity(operation)
    case .moveClock where isAlone:
      clock.now += [0, 1e-6, 1, 60, 3600, -30][operation.choice % 6]
      note("the clock is at \(clock.now.timeIntervalSinceReferenceDate)")
    case .moveClock: break
    case .failDisk where configuration.hasFaults: failDisk(operation)
    case .failDisk: break
    case .checkAll: try checkAll()
    case .fail: fail()
    }
    if store.hasFailed { try replaceFailedStore() }
  }

  /// Closes the store after a violation.
  func abandon() {
    if opened != nil { close() }
  }

  /// Closes the store.
  func close() {
    (held, tokens, arriving) = ([], [], [])
    store.close()
    opened = nil
  }

  var store: ResponseStore {
    guard let opened else { fatalError("the store is closed") }
    return opened
  }

  /// Checks everything, and closes the store.
  package func finish() throws(Ledger.Violation) {
    try checkAll()
    close()
  }

  func replaceFailedStore() throws(Ledger.Violation) {
    guard configuration.hasFaults || ledger.word(Self.begunFailureWord) > failureCount else {
      throw unsound("the store failed")
    }
    note("the store failed")
    // What was not flushed is lost.
    ledger.endFlush(ledger.beginFlush(by: process), by: process, isDurable: false)
    ContractFaults.clear()
    // Responses that are requested before and stored afterwards must be dropped.
    let tokens = tokens
    close()
    try open()
    self.tokens = tokens
  }

  /// Lets the data fail in all processes.
  private func fail() {
    guard let file = ResponseStore.dataFile(inDirectory: directory) else { return }
    note("the data fails")
    ledger.addToWord(Self.begunFailureWord)
    unlink(file)
    // Detects it.
    _ = store.isInPlace
    ledger.addToWord(Self.endedFailureWord)
  }

  private func open() throws(Ledger.Violation) {
    failureCount = ledger.word(Self.endedFailureWord)
    var options = options
    options.capacityByteCount = capacity
    options.log = { [notes] line in notes.append("log: \(line)") }
    let store = try Self.open(directory, options, isFaulty: ledger.isFaulty)
    opened = store
    let generation = ResponseStore.dataFile(inDirectory: directory).flatMap {
      UInt64($0.dropLast("/data.mdb".count).split(separator: "-").last ?? "")
    }
    guard let generation else { throw unsound("there is no data") }
    if ledger.word(Self.generationWord) != generation {
      ledger.storeWasLost()
      ledger.setWord(Self.generationWord, generation)
    }
    counts = ContractCounts(store)
    // The store's own threads count what they have removed after the commit, also those of a store that failed.
    for _ in 0..<1000 where configuration.hasThreads {
      Self.sleepBriefly()
      let later = ContractCounts(store)
      if later == counts { return }
      counts = later
    }
  }

  private func reopen() throws(Ledger.Violation) {
    note("reopen")
    // Losses are reported by a flush, not by closing. Other processes can cause some, see `flush()`.
    if ledger.isFaulty || !isAlone { try flush() }
    let accepted = ledger.beginFlush(by: process)
    let isFaulty = ledger.isFaulty
    let hasFailed = store.hasFailed
    close()
    ledger.endFlush(accepted, by: process, isDurable: !isFaulty && !hasFailed)
    try open()
  }

  func flush() throws(Ledger.Violation) {
    note("flush")
    let (isHealthy, accepted) = (!ContractFaults.areActive, ledger.beginFlush(by: process))
    do throws(StoreError) {
      try store.flush()
    } catch {
      ledger.endFlush(accepted, by: process, isDurable: false)
      // A lookup of another process, when it has no processor, can pin all free pages of a store that has few.
      let cause = error.cause
      let isPinned = ledger.isEvicting && !isAlone && cause?.code == .mapFull
      guard ledger.isFaulty || isPinned || store.hasFailed else { throw unsound("a flush failed: \(error)") }
      return note("the flush failed")
    }
    ledger.endFlush(accepted, by: process, isDurable: true)
    if isHealthy, isAlone { ledger.isFaulty = false }
    if isAlone, isHealthy, store.statistics.queuedByteCount != 0 {
      throw unsound("a flush returned before everything was written")
    }
  }

  private func setCapacity(_ operation: ContractOperation) {
    let capacities = Self.capacities(isEvicting: configuration.isEvicting)
    capacity = capacities[operation.choice % capacities.count]
    note("set the capacity to \(capacity)")
    store.capacityByteCount = capacity
  }

  private func failDisk(_ operation: ContractOperation) {
    let code = operation.parameter % 2 == 0 ? EIO : ENOSPC
    note("the disk fails \(1 + operation.parameter / 2 % 4) times after \(operation.choice) operations")
    ledger.isFaulty = true
    ContractFaults.fail(after: operation.choice, count: 1 + operation.parameter / 2 % 4, with: code)
  }
}
