import FoundationEssentials
import LMDB

/// The store as part of a fleet of machines.
extension ResponseStore {
  /// The file with the state of the fleet that a directory belongs to.
  package static let fleetFileName = "LMDBURLCache.fleet"

  /// Refuses a directory of a fleet to a store without a fleet, which would serve responses without a lease.
  ///
  /// An inspection is allowed.
  static func checkFleet(directory: String, options: Options) throws(StoreError) {
    guard !options.isInFleet, !options.opensExistingOnly else { return }
    guard StoreDirectory.hasFile(fleetFileName, in: try DirectoryPath.absolute(directory)) else { return }
    throw StoreError(
      .fleetMismatch, directory: directory, reason: "it belongs to a fleet of caches",
      remedy: "Set the fleet in the options, or remove \(fleetFileName) while no process uses the directory")
  }

  /// The error of a cache with a fleet and without a disk tier.
  package static func fleetNeedsDisk(directory: String) -> StoreError {
    StoreError(
      .fleetMismatch, directory: directory, reason: "a cache in a fleet needs a disk tier",
      remedy: "Set a disk capacity of at least \(minimumCapacityByteCount) bytes")
  }

  /// The ID of the store's removal log. A store that is created again has another one.
  package var ownerID: UInt64 { context.removalLog.owner }

  /// Carries out removals of other machines, with one sync.
  ///
  /// - Returns: The sequence number of the last removal; nil if they are not durable. Then some may be in force.
  package func removeDurably(_ removals: [FleetRemoval]) -> UInt64? {
    let now = context.options.clock()
    return remover.remove(removals.map { ($0.scope, $0.effect.mode(at: now)) })
  }
}

/// A removal of another machine.
package struct FleetRemoval: Sendable, Hashable {
  /// The effect on the responses that a removal covers.
  package enum Effect: Sendable, Hashable {
    /// They are removed.
    case remove
    /// They become stale.
    case makeStale
    /// They may have been removed on another machine: every use requires validation, and no stale window counts.
    case suspect

    fileprivate func mode(at now: Date) -> RemovalMode {
      switch self {
      case .remove: .hard
      case .makeStale: .soft(at: now)
      case .suspect: .suspect
      }
    }
  }

  /// The responses that it covers.
  package var scope: RemovalScope
  /// The effect on them.
  package var effect: Effect

  /// Creates a removal.
  package init(_ scope: RemovalScope, effect: Effect = .remove) {
    self.scope = scope
    self.effect = effect
  }

  /// Creates a removal of the fleet's log.
  package init(_ scope: RemovalScope, isSoft: Bool) {
    self.init(scope, effect: isSoft ? .makeStale : .remove)
  }
}

extension RemovalScope {
  /// The scope for other machines, in at most 480 bytes. It covers at least as much.
  package var encodedBytes: [UInt8] { abbreviated.encoded }

  /// Decodes ``encodedBytes``; nil if they are of a later version.
  package init?(encodedBytes bytes: [UInt8]) {
    guard let scope = bytes.withUnsafeBytes({ RemovalScope(encoded: $0) }) else { return nil }
    self = scope
  }

  /// Decodes ``encodedBytes``; nil if they are of a later version.
  package init?(encodedBytes bytes: Slice<UnsafeRawBufferPointer>) {
    self.init(encoded: UnsafeRawBufferPointer(rebasing: bytes))
  }
}
