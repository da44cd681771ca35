/// The Sentinels that know the primary server of a fleet. Only one thread at a time can use them.
///
/// A server is the primary if a majority of all Sentinels of the URL names it. So one that lies, or was cut off from
/// the others during a failover, misleads no machine.
///
/// That is asked again after each renewal of a lease, and at the end of each purge. Sentinels go from one primary to
/// the next, and two majorities share one. If a purge on one server has ended, its shared Sentinel names another one
/// only later, hence all leases there begin later; and a lease on an earlier server was renewed before the purge on the
/// later one was posted, so the purge waits for its end.
///
/// `@unchecked Sendable`: like its connections, their owner passes it from thread to thread.
package final class Sentinels: @unchecked Sendable {
  private let primaryName: String
  private let connect: @Sendable (RedisServer.Address, Duration) throws(RedisTierError) -> RedisConnection
  /// Those that replied last are first.
  private var sentinels: [(address: RedisServer.Address, connection: RedisConnection?)]

  init(
    _ addresses: [RedisServer.Address], primaryName: String,
    connect: @escaping @Sendable (RedisServer.Address, Duration) throws(RedisTierError) -> RedisConnection
  ) {
    self.primaryName = primaryName
    self.connect = connect
    sentinels = addresses.map { ($0, nil) }
  }

  /// The address that a majority names.
  ///
  /// - Parameter limit: The maximum time. Each Sentinel gets a part, so that some can be out of reach.
  /// - Throws: `RedisTierError` with the code `noPrimary`.
  func primary(within limit: Duration) throws(RedisTierError) -> RedisServer.Address {
    let majority = sentinels.count / 2 + 1
    let share = limit / (sentinels.count + 1)
    var votes: [RedisServer.Address: Int] = [:]
    var cause: String?
    defer { sentinels = sentinels.filter { $0.connection != nil } + sentinels.filter { $0.connection == nil } }
    for index in sentinels.indices {
      do throws(RedisTierError) {
        let address = try ask(index, within: share)
        votes[address, default: 0] += 1
        if votes[address] == majority { return address }
      } catch {
        sentinels[index].connection = nil
        cause = "\(sentinels[index].address.name): \(error.reason)"
      }
    }
    throw RedisTierError(
      .noPrimary,
      "\(majority) of \(sentinels.count) Sentinels must name one primary '\(primaryName)'"
        + (cause.map { ", and \($0)" } ?? ", and they name different ones"))
  }

  private func ask(_ index: Int, within limit: Duration) throws(RedisTierError) -> RedisServer.Address {
    let connection =
      if let known = sentinels[index].connection { known } else { try connect(sentinels[index].address, limit) }
    sentinels[index].connection = connection
    let reply = try connection.command(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", primaryName], timeout: limit)
    guard reply != .null else { throw RedisTierError(.noPrimary, "it knows no server of this name") }
    let parts = try reply.asElements(atLeast: 2)
    guard let port = UInt16(exactly: try parts[1].asInteger()),
      let address = RedisServer.Address(host: try parts[0].asText(), port: port)
    else { throw RedisTierError(.badReply, "it names a malformed address") }
    return address
  }
}
