/// The order in which transfers start: a queue per origin, with limits per origin and in total.
///
/// Origins take turns, so that an origin with many or slow requests does not delay the others. Only the I/O thread uses
/// it.
struct OriginQueues {
  /// The requests to one origin.
  private final class Origin {
    var activeCount = 0
    /// The waiting transfers, from `firstIndex` on. Some may have ended.
    var waiting: [Transfer?] = []
    var firstIndex = 0
    /// The number of transfers in `waiting` that have ended.
    var endedCount = 0
    /// Whether the origin is in the list of turns.
    var takesTurns = false

    func popFirst() -> Transfer? {
      while firstIndex < waiting.count {
        let transfer = waiting[firstIndex]
        waiting[firstIndex] = nil
        firstIndex += 1
        if firstIndex * 2 > waiting.count {
          waiting.removeFirst(firstIndex)
          firstIndex = 0
        }
        if let transfer {
          if transfer.phase == .waiting { return transfer }
          endedCount -= 1
        }
      }
      return nil
    }

    var isWaiting: Bool { waiting.count - firstIndex > endedCount }

    /// Records that a waiting transfer has ended.
    func noteEnded() {
      endedCount += 1
      guard endedCount > 32, endedCount * 2 > waiting.count - firstIndex else { return }
      waiting = waiting[firstIndex...].filter { $0?.phase == .waiting }
      firstIndex = 0
      endedCount = 0
    }
  }

  private let maximumPerOrigin: Int
  private let maximum: Int
  private var origins: [String: Origin] = [:]
  /// The origins with a waiting request and free capacity, in the order of their turns.
  private var turns: [Origin] = []
  private(set) var activeCount = 0

  init(maximumPerOrigin: Int, maximum: Int) {
    self.maximumPerOrigin = max(1, maximumPerOrigin)
    self.maximum = max(1, maximum)
  }

  /// Adds a waiting transfer.
  mutating func append(_ transfer: Transfer) {
    let name = transfer.request.origin
    let origin: Origin
    if let known = origins[name] {
      origin = known
    } else {
      origin = Origin()
      origins[name] = origin
    }
    origin.waiting.append(transfer)
    giveTurn(to: origin)
  }

  /// Removes and returns the transfer to start next; nil if none is waiting, or there is no capacity.
  mutating func popFirst() -> Transfer? {
    while activeCount < maximum, !turns.isEmpty {
      let origin = turns.removeFirst()
      origin.takesTurns = false
      guard let transfer = origin.popFirst() else { continue }
      origin.activeCount += 1
      activeCount += 1
      giveTurn(to: origin)
      return transfer
    }
    return nil
  }

  /// Releases the capacity of a transfer that was started.
  mutating func releaseCapacity(of transfer: Transfer) {
    let name = transfer.request.origin
    guard let origin = origins[name] else { return }
    origin.activeCount -= 1
    activeCount -= 1
    giveTurn(to: origin)
    removeIfUnused(name, origin)
  }

  /// Records that a waiting transfer has ended.
  mutating func noteEnded(_ transfer: Transfer) {
    let name = transfer.request.origin
    guard let origin = origins[name] else { return }
    origin.noteEnded()
    removeIfUnused(name, origin)
  }

  /// Adds an origin to the list of turns if it has a waiting request and free capacity.
  private mutating func giveTurn(to origin: Origin) {
    guard !origin.takesTurns, origin.activeCount < maximumPerOrigin, origin.isWaiting else { return }
    origin.takesTurns = true
    turns.append(origin)
  }

  private mutating func removeIfUnused(_ name: String, _ origin: Origin) {
    if origin.activeCount == 0, !origin.isWaiting { origins[name] = nil }
  }

  /// Calls `body` with each waiting transfer.
  func forEachWaiting(_ body: (Transfer) -> Void) {
    for origin in origins.values {
      for transfer in origin.waiting[origin.firstIndex...] {
        if let transfer, transfer.phase == .waiting { body(transfer) }
      }
    }
  }
}
