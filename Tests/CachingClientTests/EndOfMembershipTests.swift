import CacheModel
import CachingClient
import CachingStorage
import FoundationEssentials
import Synchronization
import Testing

@Suite("End of a membership in a fleet")
struct EndOfMembershipTests {
  @Test("A cache that ends leaves its fleet while its store is still open, so that the end is no failure")
  func order() throws {
    let directory = FileManager.default.temporaryDirectory.appending(path: "membership-\(UUID().uuidString)")
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(at: directory)
    }
    let tier = Tier()
    var options = ResponseCache.Options()
    options.fleet = tier
    for _ in 0..<2 {
      let cache = try ResponseCache(
        directory: directory.path(), memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
      #expect(cache.flush())
      #expect(cache.tiers.store?.checkInvariants() == [])
    }
    #expect(tier.hadStores.withLock { $0 } == [true, true])
  }

  /// A fleet without other machines.
  private final class Tier: JoinableFleetTier {
    /// For each membership, whether there was a store when it ended.
    let hadStores = Mutex<[Bool]>([])

    func join(directory: String, node: FleetNode) -> any FleetMembership { Membership(self, node) }
  }

  private final class Membership: FleetMembership {
    private let tier: Tier
    private let node: FleetNode
    private let hasLeft = Atomic(false)
    let lease: MachineLease

    init(_ tier: Tier, _ node: FleetNode) {
      self.tier = tier
      self.node = node
      // Never freed, because the lease may outlive the membership.
      let deadline = UnsafeMutablePointer<Atomic<UInt64>>.allocate(capacity: 1)
      deadline.initialize(to: Atomic(.max))
      lease = MachineLease(deadline: deadline, in: tier)
    }

    deinit { leave() }

    var sharedResponses: (any TransportLayer)? { nil }

    func purge(_ removal: Removal, timeout: Duration?, _ removeHere: () -> Void) -> FleetPurgeResult {
      removeHere()
      return FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
    }

    func post(_ removals: [Removal], _ removeHere: () -> Void) { removeHere() }

    func leave() {
      if hasLeft.exchange(true, ordering: .relaxed) { return }
      let hadStore = node.storeID() != nil
      tier.hadStores.withLock { $0.append(hadStore) }
    }
  }
}
