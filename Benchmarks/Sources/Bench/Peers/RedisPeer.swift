import CRawHiredis
import Foundation

/// A private Redis server on a Unix socket, read with GET by hiredis; in memory only, without a limit.
final class RedisPeer: Peer {
  static let name = "Redis, Unix socket"
  static let waits = true

  private let fixture: Fixture
  private let urls: [String]
  private let server: Process
  private let connection: UnsafeMutablePointer<redisContext>

  init(folder: String, fixture: Fixture) throws {
    self.fixture = fixture
    urls = (0..<fixture.count).map { fixture.url($0) }
    let socket = folder + "/redis.sock"
    server = Process()
    server.executableURL = URL(fileURLWithPath: "/usr/bin/redis-server")
    server.arguments = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", folder]
    server.standardOutput = FileHandle.nullDevice
    server.standardError = FileHandle.nullDevice
    try server.run()
    let deadline = Date().addingTimeInterval(30)
    while true {
      if let connection = redisConnectUnix(socket) {
        if connection.pointee.err == 0 {
          self.connection = connection
          return
        }
        redisFree(connection)
      }
      guard Date() < deadline else { throw BenchError("the Redis server does not reply") }
      usleep(20_000)
    }
  }

  /// Sends a command; its parts can have any bytes.
  private func append(_ parts: [[UInt8]]) {
    let joined = parts.flatMap { $0 }
    var lengths = parts.map(\.count)
    joined.withUnsafeBufferPointer { bytes in
      bytes.withMemoryRebound(to: CChar.self) { characters in
        var offset = 0
        var pointers: [UnsafePointer<CChar>?] = lengths.map { count in
          defer { offset += count }
          return characters.baseAddress.map { $0 + offset }
        }
        _ = redisAppendCommandArgv(connection, Int32(parts.count), &pointers, &lengths)
      }
    }
  }

  private func reply<R>(_ body: (redisReply) -> R) throws -> R {
    var reply: UnsafeMutableRawPointer?
    guard redisGetReply(connection, &reply) == REDIS_OK, let reply else { throw BenchError("Redis failed") }
    defer { freeReplyObject(reply) }
    return body(reply.assumingMemoryBound(to: redisReply.self).pointee)
  }

  func store(_ range: Range<Int>) throws {
    let set = Array("SET".utf8)
    var pending = 0
    func readReplies() throws {
      for _ in 0..<pending { try reply { _ in } }
      pending = 0
    }
    for index in range {
      let head = fixture.head(index)
      let count = withUnsafeBytes(of: UInt32(head.count)) { Array($0) }
      append([set, Array(urls[index].utf8), count + head + fixture.body(index)])
      // Send many commands before reading the replies.
      pending += 1
      if pending == 64 { try readReplies() }
    }
    try readReplies()
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      guard let count = withValue(Int(pick), { $0.count }) else { return 0 }
      sum &+= count
    }
    return sum
  }

  private func withValue<R>(_ index: Int, _ body: (UnsafeRawBufferPointer) -> R) -> R? {
    var url = urls[index]
    let get: StaticString = "GET"
    url.withUTF8 { url in
      url.withMemoryRebound(to: CChar.self) { url in
        get.withUTF8Buffer { get in
          get.withMemoryRebound(to: CChar.self) { get in
            var parts = (get.baseAddress, url.baseAddress)
            var lengths = (get.count, url.count)
            withUnsafeMutablePointer(to: &parts) { parts in
              withUnsafeMutablePointer(to: &lengths) { lengths in
                _ = redisAppendCommandArgv(
                  connection, 2, UnsafeMutableRawPointer(parts).assumingMemoryBound(to: UnsafePointer<CChar>?.self),
                  UnsafeMutableRawPointer(lengths).assumingMemoryBound(to: Int.self))
              }
            }
          }
        }
      }
    }
    do {
      return try reply { reply in
        guard reply.type == REDIS_REPLY_STRING, let text = reply.str else { return nil }
        let bytes = UnsafeRawBufferPointer(start: text, count: reply.len)
        let start = 4 + Int(bytes.load(as: UInt32.self))
        return body(UnsafeRawBufferPointer(rebasing: bytes[start...]))
      }
    } catch {
      return nil
    }
  }

  func body(_ index: Int) -> Data? { withValue(index) { Data($0) } }

  func close() {
    redisFree(connection)
    endProcess(server)
  }
}
