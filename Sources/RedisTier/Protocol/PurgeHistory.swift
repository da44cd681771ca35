import CacheModel
import FoundationEssentials
import HTTPCaching
import Synchronization

/// The purges that this process has read from the fleet file, for the check of shared responses.
final class PurgeHistory: Sendable {
  private let file: FleetFile
  private let known = Mutex((epoch: UInt64(0), purges: RemovalIndex(after: 0, capacity: maximumCount)))

  /// The maximum number of purges that are remembered; earlier ones count as covering everything.
  private static let maximumCount = 1 << 14

  init(_ file: FleetFile) {
    self.file = file
  }

  /// Whether a purge of an epoch after a number, up to the last one, may cover a response.
  ///
  /// - Parameters:
  ///   - number: The position at which the response was requested.
  ///   - last: The last purge of the epoch, as ``FleetFile/lastAnnounced(inEpochOf:)`` returns it.
  ///   - fields: The fields of the response. With No-Vary-Search it is also one for equivalent URLs.
  func mayCover(
    _ key: RequestKey, after number: UInt64, upTo last: UInt64, inEpoch epoch: UInt64, fields: HeaderFields
  ) -> Bool {
    guard number < last else { return false }
    let keys = fields.contains("No-Vary-Search") ? [key, key.searchSpace] : [key]
    return known.withLock { known in
      if known.epoch != epoch { known = (epoch, RemovalIndex(after: 0, capacity: Self.maximumCount)) }
      catchUp(&known.purges, to: last, inEpoch: epoch)
      // When another machine stored its copy is not known, so every date covers it.
      return keys.contains { key in
        known.purges.effect(after: number, on: key.bytes, storedAt: .distantFuture) { fields } != .none
      }
    }
  }

  private func catchUp(_ purges: inout RemovalIndex, to newest: UInt64, inEpoch epoch: UInt64) {
    let oldest = newest - min(newest, UInt64(Self.maximumCount))
    if oldest > purges.last { purges.forget(upTo: oldest) }
    while purges.last < newest {
      let number = purges.last + 1
      if let purge = file.removal(ofPurge: number, inEpoch: epoch) {
        purges.append(purge)
      } else {
        purges.forget(upTo: number)
      }
    }
  }
}
