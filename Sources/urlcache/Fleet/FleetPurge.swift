import CachingClient
import Foundation
import LMDBURLCache
import RedisTier

/// `urlcache purge --fleet URL`: purges on all machines of a fleet.
enum FleetPurge {
  /// Purges, and prints how many machines have confirmed.
  ///
  /// - Parameter words: The scope in words.
  static func run(_ scope: PurgeScope, _ mode: PurgeMode, _ words: String, _ arguments: Arguments) throws {
    guard let url = arguments.value("fleet"), arguments.operands.isEmpty else {
      throw UsageError("--fleet replaces the directory")
    }
    guard !arguments.has("dry-run") else { throw UsageError("--dry-run needs a directory instead of --fleet") }
    let console = try FleetAccess.console(url, arguments)
    guard let removalScope = scope.removalScope else { throw UsageError("no response can be stored for that URL") }
    let result = try console.purge(removalScope, isSoft: mode == .soft)
    try Output.write(arguments.has("json") ? json(result).pretty : text(result, mode, words))
  }

  private static func text(_ result: FleetPurgeResult, _ mode: PurgeMode, _ words: String) -> String {
    let verb = mode == .soft ? "Marked as stale" : "Removed"
    var text = "\(verb) on all machines \(words). \(Format.count(result.confirmedCount, "machine")) confirmed"
    if result.expiredLeaseCount > 0 {
      text += ", \(Format.count(result.expiredLeaseCount, "lease")) ended without a confirmation"
    }
    return text + ".\n"
  }

  private static func json(_ result: FleetPurgeResult) -> JSON {
    [
      "confirmedCount": .number(result.confirmedCount), "expiredLeaseCount": .number(result.expiredLeaseCount),
    ]
  }

  /// Says on standard error that the purge of a directory does not reach the other machines of its fleet.
  static func warnIfLocal(_ directory: URL) {
    guard CacheDirectory.isInFleet(directory) else { return }
    Output.error(
      "urlcache purge: The directory belongs to a fleet, and this purge holds on this machine only. "
        + "Use --fleet to purge on all machines.\n")
  }
}
