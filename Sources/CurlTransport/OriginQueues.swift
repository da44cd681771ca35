/// Which transfer may start next: a queue for each origin, and limits for each origin and for all. Used by the I/O
/// thread alone.
///
/// The origins that wait take turns, so that one with many requests, or a slow one, does not keep the others from going
/// out.
struct OriginQueues {
  /// The requests to one origin.
  private final class Origin {
    var activeCount = 0
    /// From `firstIndex` on; some may have ended while they waited.
    var waiting: [Transfer?] = []
    var firstIndex = 0
    var endedCount = 0
    /// Whether it is among those that take turns.
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

    /// Called when a transfer that waits has ended.
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
  /// The origins that have a request waiting and a place free, in the order of their turns.
  private var turns: [Origin] = []
  private(set) var activeCount = 0

  init(maximumPerOrigin: Int, maximum: Int) {
    self.maximumPerOrigin = max(1, maximumPerOrigin)
    self.maximum = max(1, maximum)
  }

  /// Adds a transfer that waits for its place.
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

  /// Takes the transfer that is to start now, with a place for it; nil if none is waiting, or no place is free.
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

  /// Frees the place of a transfer that was started.
  mutating func freePlace(of transfer: Transfer) {
    let name = transfer.request.origin
    guard let origin = origins[name] else { return }
    origin.activeCount -= 1
    activeCount -= 1
    giveTurn(to: origin)
    removeIfUnused(name, origin)
  }

  /// Called when a transfer has ended that was waiting.
  mutating func noteEnded(_ transfer: Transfer) {
    let name = transfer.request.origin
    guard let origin = origins[name] else { return }
    origin.noteEnded()
    removeIfUnused(name, origin)
  }

  private mutating func giveTurn(to origin: Origin) {
    guard !origin.takesTurns, origin.activeCount < maximumPerOrigin, origin.isWaiting else { return }
    origin.takesTurns = true
    turns.append(origin)
  }

  private mutating func removeIfUnused(_ name: String, _ origin: Origin) {
    if origin.activeCount == 0, !origin.isWaiting { origins[name] = nil }
  }

  /// Calls `body` with each transfer that waits.
  func forEachWaiting(_ body: (Transfer) -> Void) {
    for origin in origins.values {
      for transfer in origin.waiting[origin.firstIndex...] {
        if let transfer, transfer.phase == .waiting { body(transfer) }
      }
    }
  }

  /// The number of origins with requests.
  var originCount: Int { origins.count }
}
