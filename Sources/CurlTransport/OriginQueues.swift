import Glibc

/// The order in which transfers start: a queue per origin, with limits per origin and in total.
///
/// Origins take turns, so that an origin with many or slow requests does not delay the others. Each origin always gets
/// a share, so that origins that do not respond cannot use up the capacity. A transfer that is paused for its reader
/// yields its place. A part of ``PoolSchedule``.
struct OriginQueues {
  typealias ID = PoolSchedule.ID

  /// The limits of active transfers.
  struct Limits {
    /// The maximum number of transfers in progress at one origin.
    var perOrigin: Int
    /// The number of transfers in progress at one origin that ``total`` does not limit.
    var share: Int { max(1, perOrigin / 8) }
    /// The number of transfers in progress from which on an origin gets no more than its ``share``.
    var total: Int
    /// The maximum number of all transfers, including paused ones, and of all connections.
    let ceiling: Int

    /// Creates the limits of a configuration. The ceiling leaves half of the process's descriptors to the process.
    init(_ configuration: CurlTransport.Configuration) {
      perOrigin = max(1, configuration.maximumConnectionsPerOrigin)
      total = max(1, configuration.maximumConnections)
      var descriptors = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &descriptors)
      ceiling = max(1, Int(clamping: descriptors.rlim_cur / 2))
    }
  }

  /// The requests to one origin.
  private final class Origin {
    var activeCount = 0
    /// The number of active transfers that have yielded their place.
    var yieldedCount = 0
    /// The waiting transfers, from `firstIndex` on. Some may have ended.
    var waiting: [ID] = []
    var firstIndex = 0
    /// The transfers in `waiting` that have ended.
    var ended: Set<ID> = []
    /// Whether the origin is in the list of turns.
    var takesTurns = false

    /// The number of transfers in progress.
    var busyCount: Int { activeCount - yieldedCount }

    func popFirst() -> ID? {
      while firstIndex < waiting.count {
        let id = waiting[firstIndex]
        firstIndex += 1
        if firstIndex * 2 > waiting.count {
          waiting.removeFirst(firstIndex)
          firstIndex = 0
        }
        if ended.remove(id) == nil { return id }
      }
      return nil
    }

    /// Returns a transfer to the front.
    func putBack(_ id: ID) {
      if firstIndex == 0 { return waiting.insert(id, at: 0) }
      firstIndex -= 1
      waiting[firstIndex] = id
    }

    var isWaiting: Bool { waiting.count - firstIndex > ended.count }

    /// Records that a waiting transfer has ended.
    func noteEnded(_ id: ID) {
      ended.insert(id)
      guard ended.count > 32, ended.count * 2 > waiting.count - firstIndex else { return }
      waiting = waiting[firstIndex...].filter { !ended.contains($0) }
      firstIndex = 0
      ended = []
    }
  }

  private let limits: Limits
  /// The maximum number of all transfers at present: the ceiling, or less while the process has no descriptor left.
  var ceiling: Int
  private var origins: [String: Origin] = [:]
  /// The origins with a waiting request, in the order of their turns. Those at their limit may be missing.
  private var turns: [Origin] = []
  private var activeCount = 0
  /// The number of active transfers that have yielded their place.
  private var yieldedCount = 0

  init(_ limits: Limits) {
    self.limits = limits
    ceiling = limits.ceiling
  }

  /// Adds a waiting transfer.
  mutating func append(_ id: ID, at name: String) {
    let origin: Origin
    if let known = origins[name] {
      origin = known
    } else {
      origin = Origin()
      origins[name] = origin
    }
    origin.waiting.append(id)
    giveTurn(to: origin)
  }

  /// Removes and returns the transfer to start next; nil if none is waiting, or there is no capacity.
  mutating func popFirst() -> ID? {
    while let index = turns.firstIndex(where: { hasCapacity(for: $0) }) {
      let origin = turns.remove(at: index)
      origin.takesTurns = false
      guard let id = origin.popFirst() else { continue }
      origin.activeCount += 1
      activeCount += 1
      giveTurn(to: origin)
      return id
    }
    return nil
  }

  private func hasCapacity(for origin: Origin) -> Bool {
    activeCount < ceiling && origin.busyCount < limits.perOrigin
      && (activeCount - yieldedCount < limits.total || origin.busyCount < limits.share)
  }

  /// Releases the capacity of a transfer that was started.
  mutating func releaseCapacity(at name: String, hasYieldedPlace: Bool) {
    guard let origin = origins[name] else { return }
    if hasYieldedPlace { reclaimPlace(at: name) }
    origin.activeCount -= 1
    activeCount -= 1
    giveTurn(to: origin)
    removeIfUnused(name, origin)
  }

  /// Returns a transfer that was started to the front of its queue, and releases its capacity.
  mutating func putBack(_ id: ID, at name: String) {
    guard let origin = origins[name] else { return }
    origin.putBack(id)
    origin.activeCount -= 1
    activeCount -= 1
    giveTurn(to: origin)
  }

  /// Gives the place of a paused transfer to other requests.
  mutating func yieldPlace(at name: String) {
    guard let origin = origins[name] else { return }
    origin.yieldedCount += 1
    yieldedCount += 1
    giveTurn(to: origin)
  }

  /// Counts a transfer that goes on. It does not wait again, even at a limit.
  mutating func reclaimPlace(at name: String) {
    guard let origin = origins[name] else { return }
    origin.yieldedCount -= 1
    yieldedCount -= 1
  }

  /// Records that a waiting transfer has ended.
  mutating func noteEnded(_ id: ID, at name: String) {
    guard let origin = origins[name] else { return }
    origin.noteEnded(id)
    removeIfUnused(name, origin)
  }

  /// Adds an origin to the list of turns if it has a waiting request and is not at its limit.
  private mutating func giveTurn(to origin: Origin) {
    guard !origin.takesTurns, origin.busyCount < limits.perOrigin, origin.isWaiting else { return }
    origin.takesTurns = true
    turns.append(origin)
  }

  private mutating func removeIfUnused(_ name: String, _ origin: Origin) {
    if origin.activeCount == 0, !origin.isWaiting { origins[name] = nil }
  }
}
