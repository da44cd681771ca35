import CXXHash
import Synchronization

/// Redis as a machine sees it, if a rule is broken there: it alters the scripts that the machine loads, and the tags of
/// shared responses.
final class RedisDouble: Sendable {
  private let rule: FleetRule
  private let known = Mutex(Known())

  private struct Known {
    /// The scripts by their digests.
    var scripts: [[UInt8]: ScriptName] = [:]
    /// When purges began to be posted.
    var postTimes: [[UInt8]: Double] = [:]
    /// The position of the machine, as it told in its last renewal.
    var epoch: [UInt8] = []
    var cursor: [UInt8] = []
  }

  /// A script of which the words are altered.
  private enum ScriptName {
    case renew, store, post, finish

    init?(_ script: String) {
      if script.contains("local node, cursor, state") {
        self = .renew
      } else if script.contains("'HSET', KEYS[1], 'k'") {
        self = .store
      } else if script.contains("redis.call('XADD'") {
        self = .post
      } else if script.contains("{'lost'") || script.contains("{'posted'") {
        self = .finish
      } else {
        return nil
      }
    }
  }

  /// - Returns: nil if the rule is not broken in Redis.
  init?(breaking rule: FleetRule?) {
    switch rule {
    case .waitFromReply?, .renewedMachineStays?, .postChecked?, .youngEpochWaits?, .epochEndsWithServer?,
      .trimmedLogNoticed?,
      .objectChecked?, .objectHasEpoch?, .taggedBeforeRequest?:
      self.rule = rule!
    default: return nil
    }
  }

  /// A connection of the machine.
  func makeConnection() -> Connection { Connection(self) }

  final class Connection: Sendable {
    private let double: RedisDouble
    private let state = Mutex(State())

    private struct State {
      var requests = RedisValueStream()
      var replies = RedisValueStream()
      /// The commands that wait for their replies.
      var commands: [[RedisValue]] = []
      /// When the first command after the end of a purge was sent.
      var begin: Double?
    }

    fileprivate init(_ double: RedisDouble) {
      self.double = double
    }

    /// Returns what Redis receives in the place of some bytes.
    func request(_ bytes: ArraySlice<UInt8>) -> [UInt8] {
      state.withLock { state in
        state.requests.values(adding: bytes).flatMap { value -> [UInt8] in
          guard case .list(let words?) = value else { fail("a request is no list of words") }
          let command = double.altered(words, sentSince: state.begin ?? now())
          state.begin = double.name(of: command) == .finish ? nil : state.begin ?? now()
          state.commands.append(command)
          return RedisValue.list(command).encoded
        }
      }
    }

    /// Returns what the machine receives in the place of some bytes.
    func reply(_ bytes: ArraySlice<UInt8>) -> [UInt8] {
      state.withLock { state in
        state.replies.values(adding: bytes).flatMap { reply -> [UInt8] in
          guard !state.commands.isEmpty else { return reply.encoded }
          return double.altered(reply, to: state.commands.removeFirst()).encoded
        }
      }
    }
  }

  // MARK: Requests

  private func name(of command: [RedisValue]) -> ScriptName? {
    guard command[0].text == "EVALSHA", let digest = command[1].bytes else { return nil }
    return known.withLock { $0.scripts[digest] }
  }

  private func altered(_ command: [RedisValue], sentSince begin: Double) -> [RedisValue] {
    switch command[0].text {
    case "BLPOP" where rule == .waitFromReply:
      // The purge looks again as soon as it has waited, and not up to a quarter of a second later.
      let id = Array((command[1].bytes ?? []).suffix(32))
      guard let sent = known.withLock({ $0.postTimes[id] }) else { return command }
      let milliseconds = Int(min(250, max(1, (sent + FleetMachine.wait - now()) * 1000)))
      return [command[0], command[1], .text("0." + String(1000 + milliseconds).dropFirst())]
    case "SCRIPT": return Array(command.dropLast()) + [.text(altered(script: command.last?.text ?? ""))]
    case "EVALSHA":
      return known.withLock { known in
        // The words of a command: its name, the digest, the number of keys, the keys, and the arguments.
        var command = command
        switch known.scripts[command[1].bytes ?? []] {
        case .renew:
          known.epoch = command[12].bytes ?? []
          known.cursor = command[13].bytes ?? []
        case .store where rule == .taggedBeforeRequest && !known.epoch.isEmpty:
          command.replaceSubrange(
            4...,
            with: Self.tagged(
              key: command[4], epoch: known.epoch, seq: known.cursor, freshness: command[7], head: command[8],
              rest: Array(command[9...])))
        case .post:
          let id = command[11].bytes ?? []
          known.postTimes[id] = known.postTimes[id] ?? begin
        case .finish where rule == .waitFromReply:
          let sent = known.postTimes[command[11].bytes ?? []] ?? now()
          if now() >= sent + FleetMachine.wait { command[14] = .text("1") }
        default: break
        }
        return command
      }
    default: return command
    }
  }

  private func altered(script: String) -> String {
    func replacing(_ part: String, by other: String) -> String { script.replacing(part, with: other) }
    switch rule {
    case .renewedMachineStays: return replacing("== ARGV[i + 1] then", by: "== ARGV[i + 1] or true then")
    // Otherwise the purge waits, and meanwhile its machine posts it again.
    case .postChecked: return replacing("{'lost', 0, {}}", by: "{'posted', 1, {}}")
    case .youngEpochWaits: return replacing("{'posted', mature and 1 or 0,", by: "{'posted', 1,")
    case .epochEndsWithServer: return replacing(" or c[2] ~= run", by: "")
    case .trimmedLogNoticed:
      // Where the log was trimmed, the machine receives the next purge in the place of those that are gone.
      return replacing("local fits = cursor", by: "local fits = true or cursor")
        .replacing(
          "local time = redis.call('TIME')",
          with: """
            if state == 'known' and entries[1] then
              local filled = {}
              for n = cursor + 1, tonumber(entries[1][1]:match('^%d+')) - 1 do
                filled[#filled + 1] = {n .. '-0', entries[1][2]}
              end
              for _, entry in ipairs(entries) do filled[#filled + 1] = entry end
              entries = filled
            end
            local time = redis.call('TIME')
            """)
    default: return script
    }
  }

  // MARK: Replies

  private func altered(_ reply: RedisValue, to command: [RedisValue]) -> RedisValue {
    if command[0].text == "SCRIPT", let digest = reply.bytes, let script = command.last?.text {
      known.withLock { $0.scripts[digest] = ScriptName(script) }
    }
    if rule == .waitFromReply, case .list(let parts?) = reply {
      switch name(of: command) {
      // Without registered machines, the purge looks at once whether it has to wait.
      case .post where parts.count == 4: return .list(parts[..<3] + [.list([])])
      case .finish where command[14].text == "1" && parts.first?.text == "posted":
        return .list([parts[0], .line(Array(":1".utf8)), .list([])])
      default: break
      }
    }
    guard rule == .objectChecked || rule == .objectHasEpoch, command[0].text == "HMGET",
      case .list(let parts?) = reply, parts.count == 6, let epoch = parts[1].bytes, let seq = parts[2].bytes
    else { return reply }
    let present = known.withLock { $0.epoch }
    return .list(
      Self.tagged(
        key: parts[0], epoch: rule == .objectHasEpoch && !present.isEmpty ? present : epoch,
        // No purge has a number as high as this.
        seq: rule == .objectChecked ? Array("4000000000".utf8) : seq, freshness: parts[3], head: parts[4],
        rest: [parts[5]]))
  }

  /// The parts of a shared response with another tag, which is in its checksum.
  private static func tagged(
    key: RedisValue, epoch: [UInt8], seq: [UInt8], freshness: RedisValue, head: RedisValue, rest: [RedisValue]
  ) -> [RedisValue] {
    guard var sealed = freshness.bytes, sealed.count == 64, let number = UInt64(String(decoding: seq, as: UTF8.self))
    else { fail("a shared response has an unknown form") }
    var bytes = (key.bytes ?? []) + epoch
    withUnsafeBytes(of: number.littleEndian) { bytes += $0 }
    bytes += sealed[..<56] + (head.bytes ?? [])
    withUnsafeBytes(of: XXH3_64bits(bytes, bytes.count).littleEndian) { sealed.replaceSubrange(56..., with: $0) }
    return [key, .string(epoch), .string(seq), .string(sealed), head] + rest
  }
}
