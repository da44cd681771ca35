import CacheModel
import CachingClient
import Foundation
import LMDBURLCache
import RedisTier

/// `urlcache purge --fleet URL`: purges on all machines of a fleet.
enum FleetPurge {
  /// Purges, and prints how many machines have confirmed.
  static func run(_ selection: ResponseSelection, _ mode: PurgeMode, _ arguments: Arguments) throws {
    let console = try FleetAccess.console(arguments.value("fleet") ?? "", arguments)
    let timeout = try timeout(arguments)
    var waiting = WaitingReport(console: console)
    let scopes = try scopes(selection, arguments)
    var result = FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
    var bar = ProgressBar("Purging")
    for (index, scope) in scopes.enumerated() {
      bar.update(done: index, total: scopes.count)
      do {
        let one = try console.purge(Removal(scope, mode.effect(at: Date())), timeout: timeout) { wait in
          bar.hide()
          waiting.update(wait)
        }
        // A machine whose lease has ended is not waited for again.
        result.confirmedCount = one.confirmedCount
        result.expiredLeaseCount += one.expiredLeaseCount
      } catch {
        bar.end()
        let done =
          index > 0 ? " \(Format.count(index)) of \(Format.count(scopes.count)) requests were purged before." : ""
        throw ToolError("\(error)\(waiting.unconfirmedText(after: error))\(done)")
      }
    }
    bar.end()
    try Output.write(
      arguments.has("json")
        ? json(result, requestCount: selection.filter.isEmpty ? nil : scopes.count).pretty
        : text(result, mode, selection, requestCount: scopes.count))
  }

  /// Returns the scopes to purge: that of the selection, or the matching requests of a directory.
  private static func scopes(_ selection: ResponseSelection, _ arguments: Arguments) throws -> [RemovalScope] {
    guard !arguments.has("dry-run") else { throw UsageError("--dry-run needs a directory instead of --fleet") }
    guard !selection.filter.isEmpty else {
      guard arguments.operands.isEmpty else { throw UsageError("--fleet replaces the directory") }
      return [selection.removalScope]
    }
    guard !arguments.operands.isEmpty else {
      throw UsageError("--status, --type and --path need a directory, whose responses they examine")
    }
    let directory = try CacheAccess.openDirectory(arguments)
    var scopes: Set<RemovalScope> = []
    var bar = ProgressBar("Searching")
    directory.forEachEntry(
      in: .stored, coveredBy: selection.removalScope, progress: { bar.update(done: $0, total: $1) }
    ) { entry, key, isCovered in
      guard isCovered, selection.selects(entry) else { return true }
      // The machines have other keys for the same query, or for equivalent URLs, so all queries of its URL are purged.
      let hasLocalKey = key.method != key.requestMethod
      scopes.insert(
        hasLocalKey ? URL(string: entry.url).flatMap { .target(of: $0) } ?? .key(key.bytes) : .key(key.bytes))
      return true
    }
    bar.end()
    try directory.checkIsInPlace()
    return Array(scopes)
  }

  private static func timeout(_ arguments: Arguments) throws -> Duration? {
    guard let text = arguments.value("timeout") else { return nil }
    guard let seconds = Double(text), (0.1...3600).contains(seconds) else {
      throw UsageError("--timeout takes a number of seconds from 0.1 to 3600, not '\(text)'")
    }
    return .seconds(seconds)
  }

  private static func text(
    _ result: FleetPurgeResult, _ mode: PurgeMode, _ selection: ResponseSelection, requestCount: Int
  ) -> String {
    let verb = mode == .soft ? "Marked as stale" : "Removed"
    var text = "\(verb) on all machines \(selection.words)"
    if !selection.filter.isEmpty { text += ": \(Format.count(requestCount, "request"))" }
    guard requestCount > 0 else { return text + ".\n" }
    text += ". \(Format.count(result.confirmedCount, "machine")) confirmed"
    if result.expiredLeaseCount > 0 {
      text += ", \(Format.count(result.expiredLeaseCount, "lease")) ended without a confirmation"
    }
    return text + ".\n"
  }

  private static func json(_ result: FleetPurgeResult, requestCount: Int?) -> JSON {
    [
      "confirmedCount": .number(result.confirmedCount), "expiredLeaseCount": .number(result.expiredLeaseCount),
      "requestCount": .number(requestCount),
    ]
  }

  /// Says on standard error that the purge of a directory does not reach the other machines of its fleet.
  static func warnIfLocal(_ directory: URL) {
    guard FleetMachineState.isInFleet(directory: directory.path) else { return }
    Output.error(
      "urlcache purge: The directory belongs to a fleet, and this purge holds on this machine only. "
        + "Use --fleet to purge on all machines.\n")
  }
}

/// Says on standard error for which machines a purge waits.
private struct WaitingReport {
  let console: FleetConsole
  private let start = ContinuousClock.now
  /// The machines that have not confirmed, as they were last known.
  private var last: PurgeWait?
  private var shownMachines: [String]?

  /// The wait that is not worth a line.
  private static let delay = Duration.milliseconds(750)

  init(console: FleetConsole) { self.console = console }

  /// Prints a line when the machines change.
  mutating func update(_ wait: PurgeWait) {
    last = wait
    guard ContinuousClock.now - start >= Self.delay, shownMachines != wait.machines else { return }
    shownMachines = wait.machines
    let left = "at most \(Format.seconds(wait.maximumSeconds)) more"
    if wait.machines.isEmpty {
      Output.error(
        "urlcache purge: Waiting for leases of before Redis was restarted or lost data, \(left).\n")
    } else {
      Output.error(
        "urlcache purge: Waiting for \(wait.machines.count) of \(Format.count(wait.machineCount, "machine")), \(left): "
          + names(wait.machines) + ".\n")
    }
  }

  /// The machines that had not confirmed when a purge ended with an error.
  func unconfirmedText(after error: RedisTierError) -> String {
    guard error.code == .unconfirmed else { return "" }
    // The purge may have ended before the first look at the machines. If Redis fails, the text shows the last look.
    let status = try? console.status()
    let machines = status.map { status in status.machines.filter { status.lag(of: $0) > 0 }.map(\.id) }
    guard let machines = machines ?? last?.machines, !machines.isEmpty else { return "" }
    return " Not confirmed by \(names(machines))."
  }

  /// Returns the hosts of machines, and their IDs.
  private func names(_ machines: [String]) -> String {
    // Without the names of the hosts, the text shows the IDs.
    let known = (try? console.status())?.machines ?? []
    let hosts = Dictionary(known.map { ($0.id, $0.host) }) { first, _ in first }
    return machines.map { id in
      let host = hosts[id, default: ""]
      return Format.visible(host.isEmpty ? id : "\(host) (\(id))")
    }.joined(separator: ", ")
  }
}
