import CacheActivity
import Glibc
import LMDB

/// The activity of all processes of the directory.
extension ResponseStore {
  /// The processes that have the directory open, by process ID, without this one if it only inspects the directory.
  ///
  /// - Complexity: O(processes + reader slots), some microseconds each.
  public var processes: [ProcessStatistics] {
    var processes: [Int32: ProcessStatistics] = [:]
    for process in activity.file?.processes ?? [] { processes[process.processID] = process }
    let last = context.database.environment.lastTransactionID
    for reader in context.isUsable ? context.database.environment.readers() : [] {
      // The slot of a dead process is freed when another process needs it.
      guard var process = processes[reader.processID] ?? ProcessStatistics(processID: reader.processID) else {
        continue
      }
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

  /// Begins to watch the requests of all processes; nil if there are no counters or no space for the events.
  package func watchEvents() -> EventWatch? {
    guard let file = activity.file, !context.storeDirectory.isReadOnly else { return nil }
    return EventWatch(
      file: file, path: context.storeDirectory.path(of: EventWatch.fileName), capacityByteCount: capacityByteCount)
  }

  /// The requests that were recorded when a process last watched, oldest first.
  package var recentEvents: [RequestEvent] {
    EventWatch.recent(path: context.storeDirectory.path(of: EventWatch.fileName))
  }
}
