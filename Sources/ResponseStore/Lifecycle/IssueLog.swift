/// Logs each kind of issue once.
final class IssueLog: Sendable {
  enum Issue: Hashable, Sendable {
    case damagedRecord, fullDisk, fullQueue, failed, failedRead, failedWrite, resized, forked
  }

  private let seen = Monitor<Set<Issue>>([])

  func isFirstOccurrence(_ issue: Issue) -> Bool {
    seen.withLock { $0.insert(issue).inserted }
  }
}
