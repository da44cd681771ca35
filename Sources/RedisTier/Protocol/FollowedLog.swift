import CacheModel
import FleetRedis
import FleetSharing
import HTTPCaching

/// The log of purges that a machine follows, as shared responses see it.
struct FollowedLog: FleetLog {
  private let file: FleetFile
  private let history: PurgeHistory

  init(_ file: FleetFile) {
    self.file = file
    history = PurgeHistory(file)
  }

  var position: LogPosition? {
    // The removals of this machine before the lease, and the lease before the position: all purges that returned before
    // are then within the position, or known to be unposted.
    guard !file.unposted.hasPending, file.isLeaseValid else { return nil }
    return file.position(ofTag: file.tag)
  }

  func mayCover(_ key: RequestKey, after number: UInt64, since position: LogPosition, fields: HeaderFields) -> Bool {
    // Not up to the position: the store's removals may be ahead of it.
    guard let last = file.lastAnnounced(inEpochOf: position) else { return true }
    return history.mayCover(key, after: number, upTo: last, inEpoch: position.epochNumber, fields: fields)
  }

  func hasPurge(after number: UInt64, since position: LogPosition) -> Bool {
    guard let last = file.lastAnnounced(inEpochOf: position) else { return true }
    return number < last
  }
}
