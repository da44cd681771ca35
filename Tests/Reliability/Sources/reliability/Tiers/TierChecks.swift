import Foundation

/// The checks of the series `tiers`, made for each response that a lookup or a load returns.
///
/// Only what was certain before the lookup began counts. So these are no violations:
/// - A response whose store overlaps with a purge: either order is right. What the origin sent after the purge was
///   called is new.
/// - An older response by another process, whose commit may come after the own one; and an older one in the memory tier
///   of another cache, which goes on with it until it is stale.
/// - An older response where a purge may have kept the newer one from being stored.
struct TierChecks: Sendable {
  let expectations: TierExpectations
  let content: TierContent
  let process: Int

  enum Violation: String, CaseIterable {
    /// A purge had returned, and memory or disk still has the response.
    case purged = "a purged response was found"
    /// The fetch was under way when the purge was called, and stored its response afterwards.
    case broughtBack = "a fetch brought a purged response back"
    case joined = "a request after a purge shared a fetch from before it"
    /// The lookup began after the store of the newer one had returned.
    case older = "an older response than the process had stored was found"
    case wrong = "wrong bytes were found"
    case unknown = "a response was found that was never stored"
  }

  /// What was certain before a lookup began.
  struct Before {
    var key: Int
    var purged: TierExpectations.LastPurge
    var purgedSince: (after: UInt64, called: UInt64)
    /// The newest version that the cache's list has; 0 for none.
    var newest: UInt64
    var tick: UInt64
  }

  func before(_ key: Int, list: Int) -> Before {
    Before(
      key: key, purged: expectations.purged(key), purgedSince: expectations.purgedSince,
      newest: expectations.newest(key, list: list), tick: expectations.tick)
  }

  /// - Parameter source: Where the response came from, if a load told.
  func violation(
    _ body: Data, url: URL?, _ before: Before, source: String?
  ) -> (Violation, String)? {
    let key = before.key
    guard let identity = content.identity(of: body, for: key), url == nil || url == content.url(key) else {
      return (.wrong, "key \(key): \(body.count) bytes from \(url?.absoluteString ?? "?")")
    }
    let version = identity.version
    // What was fetched is as old as the origin's answer; what was stored by hand, as the end of its store.
    let isFetched = content.isFetched(key)
    let settled = isFetched ? version : expectations.ended(version)
    let text =
      "key \(key) (\(content.url(key).path)), \(body.count) bytes, version \(version) of process \(identity.process), "
      + "begun at \(expectations.began(version)), stored at \(expectations.ended(version))"
    guard version <= expectations.tick, expectations.began(version) > 0 else { return (.unknown, text) }
    if settled > 0 {
      let (after, called) = before.purgedSince
      let isSince = version > after && settled < called
      if settled < before.purged.called || isSince {
        let purge = isSince ? called : before.purged.called
        let name = isSince ? "since \(after)" : TierPurge.kindNames[before.purged.kind]
        let ended = expectations.ended(version)
        var kind = Violation.purged
        if isFetched, source == "coalesced" || source == "network" {
          kind = .joined
        } else if isFetched, ended == 0 || ended > purge {
          kind = .broughtBack
        }
        let who = isSince ? "" : " by process \(before.purged.process)"
        return (kind, "\(text); purged (\(name))\(who) at \(purge); the lookup began at \(before.tick)")
      }
    }
    let ended = expectations.ended(version)
    if version < before.newest, identity.process == process, ended > 0,
      ended < expectations.began(before.newest),
      !expectations.mayBeRevoked(key, since: expectations.began(before.newest))
    {
      return (
        .older,
        "\(text); version \(before.newest) was begun at \(expectations.began(before.newest)) and stored at "
          + "\(expectations.ended(before.newest)); the lookup began at \(before.tick)"
      )
    }
    return nil
  }
}
