import CacheModel
import HTTPCaching
import Synchronization

/// A complete response whose storage awaits the decision of the caller's hook.
///
/// The fetch stays registered until then, so that an invalidation revokes its permit. If the hook releases its callback
/// without calling it, nothing is stored.
final class PendingStore<Storage: ResponseStorage>: Sendable {
  private let client: CachingClient<Storage>
  private let plan: FetchPlan<Storage.Entry>
  private let fetch: InFlightFetch
  private let isDecided = Atomic<Bool>(false)
  /// Ended when the hook has decided.
  private let wait: BoundedWait

  init(
    _ client: CachingClient<Storage>, _ plan: FetchPlan<Storage.Entry>, _ fetch: InFlightFetch,
    _ wait: BoundedWait
  ) {
    self.wait = wait
    self.client = client
    self.plan = plan
    self.fetch = fetch
  }

  deinit {
    if !isDecided.load(ordering: .relaxed) {
      fetch.storageReport.decide(.notStored(.refusedByCaller))
      client.inFlightFetches.finish(fetch)
    }
    wait.end()
  }

  /// Stores the hook's proposal; `nil` stores nothing. Only the first call has an effect.
  func decide(_ proposal: ProposedResponse?) {
    guard !isDecided.exchange(true, ordering: .relaxed) else { return }
    defer { wait.end() }
    guard let proposal else {
      client.refuse(.refusedByCaller, plan.request, fetch)
      return client.inFlightFetches.finish(fetch)
    }
    let key = client.storeProposal(proposal, plan, in: fetch)
    guard let cleanUp = client.cleanUp(after: proposal, plan, storedAt: key, in: fetch) else {
      return client.inFlightFetches.finish(fetch)
    }
    // A removal waits for the disk, which must not block the hook's thread.
    Task { [self] in
      await cleanUp()
      client.inFlightFetches.finish(fetch)
    }
  }
}
