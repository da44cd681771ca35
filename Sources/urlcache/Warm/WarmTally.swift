import Foundation
import LMDBURLCache

/// The results of a run.
struct WarmTally {
  /// The source of a response.
  enum Source: Sendable {
    case fresh, revalidated, fetched
  }

  /// The result of a request.
  enum Outcome: Sendable {
    case loaded(WarmResult, Source)
    /// No response, with a sentence.
    case failed(String)
    /// The run was interrupted first.
    case cancelled
  }

  private(set) var storedCount = 0
  private(set) var freshCount = 0
  private(set) var revalidatedCount = 0
  private(set) var notStoredCount = 0
  private(set) var failedCount = 0
  /// The number of sitemaps of an index that could not be read.
  var failedSitemapCount = 0
  private(set) var fetchedByteCount = 0
  /// The number of responses with a status from 400 on.
  private(set) var errorStatusCount = 0
  /// The number of responses that were not stored, by the ID of the rule.
  private(set) var refusals: [String: Int] = [:]

  /// The number of completed requests.
  var doneCount: Int { storedCount + freshCount + revalidatedCount + notStoredCount + failedCount }

  /// The number of failures of both kinds.
  var failureCount: Int { failedCount + failedSitemapCount }

  mutating func add(_ outcome: Outcome) {
    switch outcome {
    case .cancelled: return
    case .failed: failedCount += 1
    case .loaded(let result, let source):
      fetchedByteCount += result.byteCount
      if result.status >= 400 { errorStatusCount += 1 }
      switch source {
      case .fresh: freshCount += 1
      case .revalidated: revalidatedCount += 1
      case .fetched:
        if let rule = result.storageRefusal {
          notStoredCount += 1
          refusals[rule.id, default: 0] += 1
        } else {
          storedCount += 1
        }
      }
    }
  }

  /// The summary as a table.
  func text(total: Int, skippedCount: Int, resumedCount: Int, seconds: Double) -> String {
    let rate = seconds > 0 ? Double(doneCount) / seconds : 0
    var text = "Warmed \(Format.count(doneCount, "URL")) of \(Format.count(total - resumedCount)) in "
    text += "\(Format.duration(seconds)) (\(Format.count(Int(rate.rounded())))/s).\n"
    if resumedCount > 0 { text += "\(Format.count(resumedCount)) were done by an earlier run.\n" }
    if skippedCount > 0 { text += "\(Format.count(skippedCount)) without GET or http were left out.\n" }
    let rules = Format.mostFrequentFirst(refusals).map { "\($0.key) \(Format.count($0.value))" }
      .joined(separator: ", ")
    let rows = [
      ["  Stored", Format.count(storedCount), "\(Format.bytes(fetchedByteCount)) fetched"],
      ["  Revalidated", Format.count(revalidatedCount), ""],
      ["  Already fresh", Format.count(freshCount), ""],
      ["  Not stored", Format.count(notStoredCount), rules],
      ["  Failed", Format.count(failedCount), ""],
      ["  Unread sitemaps", Format.count(failedSitemapCount), ""],
      ["  Error status", Format.count(errorStatusCount), "among the others"],
    ]
    // Without a note, the row ends with the count.
    let shown = rows.enumerated().filter { $0.offset == 0 || $0.element[1] != "0" }
      .map { $0.element[2].isEmpty ? Array($0.element.prefix(2)) : $0.element }
    return text + Format.table(shown, rightAligned: [1])
  }

  /// The summary as JSON.
  func json(total: Int, skippedCount: Int, resumedCount: Int, seconds: Double, isComplete: Bool) -> JSON {
    [
      "total": .number(total), "skippedCount": .number(skippedCount), "resumedCount": .number(resumedCount),
      "doneCount": .number(doneCount), "storedCount": .number(storedCount),
      "revalidatedCount": .number(revalidatedCount),
      "freshCount": .number(freshCount), "notStoredCount": .number(notStoredCount),
      "refusals": .object(refusals.map { ($0.key, .number($0.value)) }), "failedCount": .number(failedCount),
      "failedSitemapCount": .number(failedSitemapCount),
      "errorStatusCount": .number(errorStatusCount), "fetchedByteCount": .number(fetchedByteCount),
      "seconds": .seconds(seconds), "isComplete": .bool(isComplete),
    ]
  }
}
