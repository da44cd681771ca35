import CacheModel
import FleetRedis

/// A purge in the fleet's log.
struct LogEntry: Sendable {
  /// A number in the log; each is one more than the one before.
  var number: UInt64
  var id: RandomID
  /// Whether the covered responses become stale instead of being removed.
  var isSoft = false
  /// Encoded as in the removal log.
  var scope: [UInt8]

  /// Parses the reply of `XRANGE`.
  static func list(_ reply: RedisReply) throws(RedisTierError) -> [LogEntry] {
    var entries: [LogEntry] = []
    for element in try reply.asElements() {
      let parts = try element.asElements(atLeast: 2)
      let name = try parts[0].asText().split(separator: "-")
      let fields = try parts[1].asHash()
      guard name.count == 2, let number = UInt64(name[0]), number > 0,
        let id = fields[Array("p".utf8)].flatMap({ RandomID(text: $0) }), let kind = fields[Array("k".utf8)],
        let scope = fields[Array("s".utf8)], scope.count <= FleetFile.maximumScopeByteCount
      else { throw RedisTierError(.badReply, "the log of purges has an entry of another program") }
      entries.append(LogEntry(number: number, id: id, isSoft: kind == [UInt8(ascii: "1")], scope: scope))
    }
    return entries
  }

  /// The removal on this machine. Everything, if the scope is of a later version, or a date without a common clock.
  func removal(isClockOff: Bool) -> Removal {
    guard let scope = RemovalScope(encodedBytes: scope) else { return Removal(.everything) }
    if case .since = scope, isClockOff { return Removal(.everything, isSoft: isSoft) }
    return Removal(scope, isSoft: isSoft)
  }
}
