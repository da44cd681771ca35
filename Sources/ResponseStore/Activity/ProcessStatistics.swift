public import FoundationEssentials
import Glibc
import LMDB

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

  init(processID: Int32, isSuspended: Bool, openTime: Date?, requestCount: Int = 0, hitCount: Int = 0) {
    self.processID = processID
    self.isSuspended = isSuspended
    self.openTime = openTime
    self.requestCount = requestCount
    self.hitCount = hitCount
  }
}

extension ResponseStore {
  /// The processes that have the directory open, by process ID, without this one if it only inspects the directory.
  ///
  /// - Complexity: O(processes + reader slots), some microseconds each.
  public var processes: [ProcessStatistics] {
    var processes: [Int32: ProcessStatistics] = [:]
    for process in activity.file.map({ ProcessTable(base: $0.base).processes }) ?? [] {
      processes[process.processID] = process
    }
    let last = context.database.environment.lastTransactionID
    for reader in context.isUsable ? context.database.environment.readers() : [] {
      var process = processes[reader.processID]
      if process == nil, let state = ProcessState(of: reader.processID) {
        process = ProcessStatistics(processID: reader.processID, isSuspended: state.isSuspended, openTime: nil)
      }
      // The slot of a dead process is freed when another process needs it.
      guard var process else { continue }
      process.readerSlotCount += 1
      if let snapshot = reader.transactionID {
        process.snapshotCount += 1
        process.snapshotAge = max(process.snapshotAge, Int(clamping: last - min(last, snapshot)))
      }
      processes[reader.processID] = process
    }
    if context.options.opensExistingOnly { processes[getpid()] = nil }
    return processes.values.sorted { $0.processID < $1.processID }
  }
}
