import HTTPCaching
import Synchronization

/// A complete response of which a caller's hook has yet to say what is to be stored. Nobody waits for that.
///
/// The fetch stays filed meanwhile, so that an invalidation reaches it. A hook that lets go of its answer without giving one
/// stores nothing.
final class PendingStore<Storage: ResponseStorage>: Sendable {
  private let client: CachingClient<Storage>
  private let plan: FetchPlan<Storage.Entry>
  private let flight: Flight<Storage.Entry>
  private let isDecided = Atomic<Bool>(false)
  /// Ended when the hook has decided.
  private let wait: DecisionWait

  init(
    _ client: CachingClient<Storage>, _ plan: FetchPlan<Storage.Entry>, _ flight: Flight<Storage.Entry>,
    _ wait: DecisionWait
  ) {
    self.wait = wait
    self.client = client
    self.plan = plan
    self.flight = flight
  }

  deinit {
    if !isDecided.load(ordering: .relaxed) { client.flights.leave(flight) }
    wait.end()
  }

  /// Stores what the hook makes of the response; `nil` stores nothing. Only the first call counts.
  func decide(_ proposal: StorageProposal?) {
    guard !isDecided.exchange(true, ordering: .relaxed) else { return }
    defer { wait.end() }
    guard let proposal else {
      client.counters.refuse(.refusedByCaller)
      return client.flights.leave(flight)
    }
    guard case .overtaken(whileStoring: true) = client.keep(proposal, plan, in: flight) else {
      return client.flights.leave(flight)
    }
    // A removal waits for the disk, and the hook's thread is not ours.
    Task { [self] in
      await client.undoIfOvertaken(plan, flight)
      client.flights.leave(flight)
    }
  }
}
