import CacheModel
import Foundation
import FoundationNetworking
import LMDBURLCache
import ResponseStore
import StoreContract

/// A purge of any kind, with its coverage and its execution by a cache, a store or the tool.
enum TierPurge: Sendable {
  case all
  /// All responses stored after a tick.
  case since(UInt64)
  case host(Int)
  case prefix(host: Int, Int)
  case group(host: Int, Int)
  /// A cache group as a tag, on all hosts.
  case tag(Int)
  case key(Int)
  /// All methods, partitions and variants of a key's URL.
  case url(Int)

  /// The date of a purge by date.
  var date: Date? {
    if case .since(let tick) = self { Ledger.date(tick) } else { nil }
  }

  /// Returns a random purge.
  ///
  /// - Parameter isWide: Whether the purge covers everything, a date range or a host.
  static func random(
    _ random: inout SeededRandom, _ content: TierContent, tick: UInt64, isWide: Bool = false
  ) -> TierPurge {
    // Choose a key first, so that the purged responses can exist.
    let key = random.below(content.keyCount)
    let host = content.host(of: key)
    switch random.below(isWide ? 3 : 16) {
    case 0: return .all
    case 1: return .since(tick - min(tick, UInt64(random.below(200))))
    case 2: return .host(host)
    case 3..<6: return .prefix(host: host, content.prefix(of: key))
    case 6, 7: return .group(host: host, content.group(of: key))
    case 8: return .tag(content.group(of: key))
    case 9..<12: return .url(key)
    default: return .key(key)
    }
  }

  /// Returns whether the purge covers the responses for a key; a purge by date covers only those that are new enough.
  func covers(_ key: Int, _ content: TierContent) -> Bool {
    switch self {
    case .all, .since: true
    case .host(let host): content.host(of: key) == host
    case .prefix(let host, let prefix): content.host(of: key) == host && content.prefix(of: key) == prefix
    case .group(let host, let group): content.host(of: key) == host && content.group(of: key) == group
    case .tag(let group): content.group(of: key) == group
    case .key(let other), .url(let other): key == other
    }
  }

  /// Returns whether the purge may revoke the store permit of an in-flight fetch of the key.
  ///
  /// The tags of its response are not known yet, so a purge of a group may revoke all permits of the host, and one of a
  /// tag all permits.
  func mayRevoke(_ key: Int, _ content: TierContent) -> Bool {
    switch self {
    case .group(let host, _): content.host(of: key) == host
    case .tag: true
    default: covers(key, content)
    }
  }

  // MARK: Execution

  /// Runs the purge between its records in the ledger.
  ///
  /// - Parameter body: Makes the purge and returns whether it took effect.
  func run(isSoft: Bool, of content: TierContent, by process: Int, _ ledger: Ledger, _ body: () -> Bool) {
    ledger.purge(
      by: process, isSoft: isSoft, after: date, covers: { covers($0, content) }, mayCover: { mayRevoke($0, content) },
      body)
  }

  /// Runs the purge.
  ///
  /// - Parameter store: The store of the cache, for purges that the cache has no method for.
  func run(on cache: LMDBURLCache, store: ResponseStore, _ content: TierContent) {
    switch self {
    case .all: cache.removeAllCachedResponses()
    case .since(let tick): cache.removeCachedResponses(since: Ledger.date(tick))
    case .host(let host): cache.removeCachedResponses(forHost: content.hostName(host))
    case .prefix(let host, let prefix):
      cache.removeCachedResponses(withPrefix: content.prefixURL(host: host, prefix: prefix))
    case .group(let host, let group):
      cache.removeCachedResponses(inGroup: "g\(group)", origin: content.prefixURL(host: host, prefix: 0))
    case .tag(let group): store.remove(.tag("g\(group)", in: ["Cache-Groups"])!)
    case .key(let key): cache.removeCachedResponse(for: URLRequest(url: content.url(key)))
    case .url(let key): store.remove(.target(of: content.url(key))!)
    }
  }

  /// Runs a soft purge with this coverage.
  ///
  /// - Parameter store: The store of the cache, for purges that the cache has no method for.
  func runSoftly(on cache: LMDBURLCache, store: ResponseStore, _ content: TierContent) {
    let scope: PurgeScope
    switch self {
    case .all: scope = .all
    case .since(let tick): scope = .since(Ledger.date(tick))
    case .host(let host): scope = .host(content.hostName(host))
    case .prefix(let host, let prefix): scope = .prefix(content.prefixURL(host: host, prefix: prefix))
    case .group(let host, let group): scope = .group("g\(group)", origin: content.prefixURL(host: host, prefix: 0))
    case .tag(let group): scope = .tag("g\(group)")
    case .url(let key): scope = .url(content.url(key))
    case .key(let key):
      guard let target = RemovalScope.target(of: content.url(key)) else { fail("no scope") }
      return store.softPurge(target)
    }
    let isDone = DispatchSemaphore(value: 0)
    Task.detached {
      do { try await cache.purge(scope, mode: .soft) } catch { fail("a soft purge failed: \(error)") }
      isDone.signal()
    }
    isDone.wait()
  }

  /// Returns the arguments of `urlcache`, or nil if it has no such purge.
  func toolArguments(directory: String, isSoft: Bool, _ content: TierContent) -> [String]? {
    let selection: [String]
    switch self {
    case .all: selection = ["--all"]
    case .since(let tick):
      let milliseconds = 600_000_000_000 + Int(tick)
      let date = Date(timeIntervalSinceReferenceDate: Double(milliseconds / 1000))
      let fraction = String(1000 + milliseconds % 1000).dropFirst()
      selection = ["--since", "\(date.formatted(.iso8601).dropLast()).\(fraction)Z"]
    case .host(let host): selection = ["--host", content.hostName(host)]
    case .prefix(let host, let prefix):
      selection = ["--prefix", content.prefixURL(host: host, prefix: prefix).absoluteString]
    case .group(let host, let group):
      selection = ["--group", "g\(group)", "--origin", content.prefixURL(host: host, prefix: 0).absoluteString]
    case .tag(let group): selection = ["--tag", "g\(group)"]
    case .key, .url: return nil
    }
    return ["purge", directory] + selection + (isSoft ? ["--soft"] : [])
  }
}
