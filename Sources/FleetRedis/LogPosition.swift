/// A point in a fleet's log of purges: an epoch and the number of a purge in it.
package struct LogPosition: Hashable, Sendable {
  /// The ID of the epoch.
  package var epoch: [UInt8]
  /// The number of the epoch on this machine.
  package var epochNumber: UInt64
  /// The number of the last purge before the point.
  package var cursor: UInt64

  package init(epoch: [UInt8], epochNumber: UInt64, cursor: UInt64) {
    self.epoch = epoch
    self.epochNumber = epochNumber
    self.cursor = cursor
  }
}
