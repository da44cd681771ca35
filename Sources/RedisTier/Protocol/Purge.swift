import CacheModel
import FleetRedis
import FoundationEssentials

/// A purge of a fleet: a removal, and the ID by which machines find it in the log.
struct Purge: Sendable {
  var id = RandomID()
  var removal: Removal

  /// Parses the reply of `XRANGE`: the purges that follow a number in the log.
  static func list(_ reply: RedisReply, after number: UInt64) throws(RedisTierError) -> [Purge] {
    var purges: [Purge] = []
    for element in try reply.asElements() {
      let parts = try element.asElements(atLeast: 2)
      let name = try parts[0].asText().split(separator: "-")
      let fields = try parts[1].asHash()
      guard name.count == 2, let id = fields[Array("p".utf8)].flatMap({ RandomID(text: $0) }),
        let bytes = fields[Array("r".utf8)]
      else { throw RedisTierError(.badReply, "the log of purges has an entry of another program") }
      guard UInt64(name[0]) == number + UInt64(purges.count) + 1 else {
        throw RedisTierError(.badReply, "the log of purges has a gap")
      }
      // A malformed removal may have been any.
      let removal = bytes.withUnsafeBytes { Removal(encoded: $0) } ?? Removal(.everything)
      purges.append(Purge(id: id, removal: removal))
    }
    return purges
  }

  /// The removal on this machine: a soft one by its clock. Everything instead of a date, without a common clock.
  func removalHere(isClockOff: Bool) -> Removal {
    var removal = removal
    if case .since = removal.scope, isClockOff { removal.scope = .everything }
    if !removal.isHard { removal.effect = .stale(since: Date()) }
    return removal
  }
}
