/// Decides which lookups poll for their replies: one at a time, and few while replies take longer than polling.
struct ReplyPolling {
  private var isBusy = false
  /// How many lookups in a row have polled in vain.
  private var failureCount = 0
  /// How many of the next lookups do not poll.
  private var pauseCount = 0

  /// After many failures, one of this many lookups polls.
  static let maximumPauseCount = 256

  /// Returns whether a lookup may poll. Then call ``end(isSuccess:)``.
  mutating func begin() -> Bool {
    if isBusy { return false }
    if pauseCount > 0 {
      pauseCount -= 1
      return false
    }
    isBusy = true
    return true
  }

  /// Ends polling.
  ///
  /// - Parameter isSuccess: Whether the replies arrived in time.
  mutating func end(isSuccess: Bool) {
    isBusy = false
    failureCount = isSuccess ? 0 : min(failureCount + 1, Self.maximumPauseCount.trailingZeroBitCount)
    pauseCount = isSuccess ? 0 : 1 << failureCount
  }
}
