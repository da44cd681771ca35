import HTTPCaching
import Synchronization

/// What a ``CachingClient`` has done since it was made.
public struct ClientStatistics: Sendable, Hashable {
  /// Answers from the store without asking anybody, stale ones included.
  public var hits = 0
  /// Fetches because nothing usable was stored.
  public var misses = 0
  /// Stored responses the origin confirmed.
  public var revalidations = 0
  /// Answers that came by way of another request's fetch.
  public var coalesced = 0
  /// Requests that wait for another request's fetch right now.
  public var waiting = 0
  /// Stale answers: permitted ones, and those in place of an error.
  public var staleServed = 0
  /// Responses handed to the storage.
  public var stored = 0
  /// Responses not stored, by the id of the ``HTTPCaching/Rule`` that kept them out.
  public var refused: [String: Int] = [:]
}

/// The running counts. All but the refusals are single atomic additions, so that a hit takes no lock.
@usableFromInline
final class Counters: Sendable {
  let hits = Atomic<Int>(0)
  let misses = Atomic<Int>(0)
  let revalidations = Atomic<Int>(0)
  let coalesced = Atomic<Int>(0)
  let waiting = Atomic<Int>(0)
  let staleServed = Atomic<Int>(0)
  let stored = Atomic<Int>(0)
  private let refused = Mutex<[String: Int]>([:])

  @usableFromInline
  func countHit() {
    hits.count()
  }

  func refuse(_ rule: Rule) {
    refused.withLock { $0[rule.id, default: 0] += 1 }
  }

  func snapshot() -> ClientStatistics {
    ClientStatistics(
      hits: hits.load(ordering: .relaxed), misses: misses.load(ordering: .relaxed),
      revalidations: revalidations.load(ordering: .relaxed), coalesced: coalesced.load(ordering: .relaxed),
      waiting: waiting.load(ordering: .relaxed),
      staleServed: staleServed.load(ordering: .relaxed), stored: stored.load(ordering: .relaxed),
      refused: refused.withLock { $0 })
  }
}

extension Atomic<Int> {
  /// Adds one. Nothing is ordered by these counts.
  func count() {
    wrappingAdd(1, ordering: .relaxed)
  }
}
