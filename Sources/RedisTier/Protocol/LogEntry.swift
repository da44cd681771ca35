import FoundationEssentials
import Glibc
import ResponseStore

/// A purge in the fleet's log.
struct LogEntry: Sendable {
  /// A number in the log; each is one more than the one before.
  var number: UInt64
  var id: RandomID
  /// Whether the covered responses become stale instead of being removed.
  var isSoft: Bool
  /// Encoded as in the removal log.
  var scope: [UInt8]

  var purge: FleetFile.Purge { FleetFile.Purge(number: number, id: id, scope: scope) }

  /// Parses the reply of `XRANGE`.
  static func list(_ reply: RedisReply) throws(RedisTierError) -> [LogEntry] {
    var entries: [LogEntry] = []
    for element in try reply.asElements() {
      let parts = try element.asElements(atLeast: 2)
      let name = try parts[0].asText().split(separator: "-")
      var entry = LogEntry(number: 0, id: RandomID(bytes: []), isSoft: false, scope: [])
      var found = 0
      for pair in try parts[1].asPairs() {
        switch pair.name {
        case [UInt8(ascii: "p")]:
          guard let id = RandomID(text: pair.value) else { throw malformed }
          entry.id = id
        case [UInt8(ascii: "s")]: entry.scope = pair.value
        case [UInt8(ascii: "k")]: entry.isSoft = pair.value == [UInt8(ascii: "1")]
        default: continue
        }
        found += 1
      }
      guard found == 3, name.count == 2, let number = UInt64(name[0]), number > 0,
        entry.scope.count <= FleetFile.maximumScopeByteCount
      else { throw malformed }
      entry.number = number
      entries.append(entry)
    }
    return entries
  }

  private static var malformed: RedisTierError {
    RedisTierError(.badReply, "the log of purges has an entry of another program")
  }

  /// The removal on this machine. Everything, if the scope is of a later version, or a date without a common clock.
  func removal(isClockOff: Bool) -> FleetRemoval {
    guard let scope = RemovalScope(encodedBytes: scope) else { return FleetRemoval(.everything) }
    if case .since = scope, isClockOff { return FleetRemoval(.everything, isSoft: isSoft) }
    return FleetRemoval(scope, isSoft: isSoft)
  }
}

/// The system's wall clock, in seconds since 1970.
enum WallClock {
  static var now: Double {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
  }
}
