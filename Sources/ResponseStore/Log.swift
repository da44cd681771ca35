/// Sees to it that each kind of trouble is logged once.
final class Log: Sendable {
  enum Trouble: Hashable, Sendable {
    case damagedRecord, fullDisk, fullQueue, condemned, failedRead, failedWrite, resized, forked
  }

  private let seen = Monitor<Set<Trouble>>([])

  func isFirst(_ trouble: Trouble) -> Bool {
    seen.withLock { $0.insert(trouble).inserted }
  }
}
