import Synchronization

/// A Lua script, which Redis runs by the digest that it returned when the script was loaded.
package final class Script: Sendable {
  private let text: String
  private let digest = Mutex<[UInt8]?>(nil)

  package init(_ text: String) {
    self.text = text
  }

  /// Runs the script. A server that does not know it loads it once.
  ///
  /// - Throws: `RedisTierError`. After a lost reply the script may have run, or may still run.
  package func run(
    keys: [[UInt8]], _ arguments: [[UInt8]], on connection: RedisConnection, timeout: Duration? = nil
  ) throws(RedisTierError) -> RedisReply {
    let tail = [Array(String(keys.count).utf8)] + keys + arguments
    if let known = digest.withLock({ $0 }) {
      do throws(RedisTierError) {
        return try connection.command([Array("EVALSHA".utf8), known] + tail, timeout: timeout)
      } catch {
        guard error.serverCode == "NOSCRIPT" else { throw error }
      }
    }
    return try load(on: connection, timeout: timeout, tail)
  }

  private func load(
    on connection: RedisConnection, timeout: Duration?, _ tail: [[UInt8]]
  ) throws(RedisTierError) -> RedisReply {
    let loaded = try connection.command(["SCRIPT", "LOAD", text], timeout: timeout).asBytes()
    digest.withLock { $0 = loaded }
    return try connection.command([Array("EVALSHA".utf8), loaded] + tail, timeout: timeout)
  }
}
