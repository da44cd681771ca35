import Foundation
import LMDBURLCache
import LoopbackOrigin
import StoreContract
import Synchronization

/// The URLs and responses of the series `fleet`.
///
/// The origin makes a new response, whose body is its tick, except for a request with the validator of the last one:
/// then it may reply 304, unless a hard purge has begun since. The field `X-Tick` has the tick of the request, so a
/// stored response tells when it was made or validated last.
enum FleetContent {
  static let keyCount = 24
  static let prefixCount = 3
  static let groupCount = 2

  static func prefix(of key: Int) -> Int { key % prefixCount }
  static func group(of key: Int) -> Int { key / prefixCount % groupCount }

  static func url(_ key: Int, port: Int) -> URL { url("/p\(prefix(of: key))/\(key)", port: port) }

  static func url(_ target: String, port: Int) -> URL {
    guard let url = URL(string: "http://127.0.0.1:\(port)\(target)") else { fail("no URL") }
    return url
  }
}

/// The origin of the series.
final class FleetOrigin: Sendable {
  private let ledger: Ledger
  private let versions = Mutex([UInt64](repeating: 0, count: FleetContent.keyCount))

  init(_ ledger: Ledger) {
    self.ledger = ledger
  }

  func reply(to request: RecordedRequest) -> Reply {
    guard let key = request.path.split(separator: "/").last.flatMap({ Int($0) }), key < FleetContent.keyCount else {
      return Reply(404)
    }
    let validator = request["If-None-Match"].flatMap { UInt64($0.filter(\.isNumber)) }
    let (version, tick) = versions.withLock { versions -> (UInt64, UInt64) in
      if let validator, versions[key] == validator, ledger.position % 3 != 0 {
        let tick = ledger.beginUpdate(of: validator, in: key, by: 0, basis: .version)
        if !ledger.mayBeRemoved(key, since: validator) { return (validator, tick) }
      }
      versions[key] = ledger.beginWrite(to: key, by: 0, basis: .version)
      return (versions[key], versions[key])
    }
    let fields = [
      ("Cache-Control", key % 8 == 0 ? "private, max-age=600" : "max-age=600"), ("ETag", "\"\(version)\""),
      ("X-Tick", "\(tick)"), ("Cache-Groups", "\"g\(FleetContent.group(of: key))\""),
    ]
    // Some responses are slow, so that purges happen during their fetches.
    var random = SeededRandom(tick)
    usleep(UInt32(random.below(8) == 0 ? random.below(300_000) : random.below(10_000)))
    return version == tick ? Reply(200, fields, "\(version)") : Reply(304, fields, "")
  }
}

/// A purge of any kind.
enum FleetPurge {
  case all, since, host, prefix(Int), group(Int), url(Int)

  static func random(_ random: inout SeededRandom) -> FleetPurge {
    let key = random.below(FleetContent.keyCount)
    switch random.below(16) {
    case 0: return .all
    case 1: return .since
    case 2: return .host
    case 3..<6: return .prefix(FleetContent.prefix(of: key))
    case 6..<9: return .group(FleetContent.group(of: key))
    default: return .url(key)
    }
  }

  var keys: [Int] {
    (0..<FleetContent.keyCount).filter { key in
      switch self {
      // Everything was stored after the date.
      case .all, .since, .host: true
      case .prefix(let prefix): FleetContent.prefix(of: key) == prefix
      case .group(let group): FleetContent.group(of: key) == group
      case .url(let other): key == other
      }
    }
  }

  func scope(port: Int) -> PurgeScope {
    switch self {
    case .all: .all
    // Also before everything that is stored while a wall clock is wrong.
    case .since: .since(Date(timeIntervalSinceNow: -864_000))
    case .host: .host("127.0.0.1")
    case .prefix(let prefix): .prefix(FleetContent.url("/p\(prefix)/", port: port))
    case .group(let group): .group("g\(group)", origin: FleetContent.url("/", port: port))
    case .url(let key): .url(FleetContent.url(key, port: port))
    }
  }
}
