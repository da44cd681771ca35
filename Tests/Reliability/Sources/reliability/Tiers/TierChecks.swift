import Foundation

/// The checks of the series `tiers` for each response that a lookup or a load returns.
///
/// They use only facts that were known before the lookup began. So these are no violations:
/// - A response whose write overlaps with a purge: either order is correct. A response that the origin sent after the
///   purge was called is new.
/// - An older response of another process. Its commit may follow this process's commit, and the memory tiers of
///   that process return it until it is stale. The caches of one process never return an older response than
///   any of them has stored.
/// - An older response, if a purge may have revoked the store permit of the newer one.
struct TierChecks: Sendable {
  let expectations: TierExpectations
  let content: TierContent
  let process: Int

  enum Violation: String, CaseIterable {
    /// Memory or disk has the response although a purge has returned.
    case purged = "a purged response was found"
    /// The fetch was in flight when the purge was called, and stored its response afterwards.
    case broughtBack = "a fetch stored a purged response again"
    case joined = "a request after a purge shared a fetch that began before the purge"
    /// The response was neither fetched nor validated after the soft purge was called.
    case unvalidated = "a response was served without validation after a soft purge"
    /// The lookup began after the write of the newer response had returned.
    case older = "an older response than the process had stored was found"
    case wrong = "wrong bytes were found"
    case unknown = "a response that was never stored was found"
  }

  /// The known facts before a lookup.
  struct Before {
    var key: Int
    var purged: TierExpectations.LastPurge
    var purgedSince: (after: UInt64, called: UInt64)
    var softPurged: TierExpectations.LastPurge
    var softPurgedSince: (after: UInt64, called: UInt64)
    /// The newest version that a cache of the process has stored, or 0.
    var newest: UInt64
    var tick: UInt64
  }

  func before(_ key: Int) -> Before {
    Before(
      key: key, purged: expectations.purged(key), purgedSince: expectations.purgedSince,
      softPurged: expectations.purged(key, isSoft: true), softPurgedSince: expectations.purgedSince(isSoft: true),
      newest: expectations.newest(key, process: process), tick: expectations.tick)
  }

  /// Returns the violation of a response and its description, or nil.
  ///
  /// - Parameter source: The source of the response if a load reported it.
  func violation(
    _ body: Data, url: URL?, _ before: Before, source: String?
  ) -> (Violation, String)? {
    let key = before.key
    guard let identity = content.identity(of: body, for: key), url == nil || url == content.url(key) else {
      return (.wrong, "key \(key): \(body.count) bytes from \(url?.absoluteString ?? "?")")
    }
    let version = identity.version
    // A fetched response is as old as the origin's reply. A manually stored response is as old as the end of its write.
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
        let caller = isSince ? "" : " by process \(before.purged.process)"
        return (kind, "\(text); purged (\(name))\(caller) at \(purge); the lookup began at \(before.tick)")
      }
    }
    if isFetched, source == "store" || source == "coalesced" {
      let current = max(version, expectations.validated(version))
      let (after, called) = before.softPurgedSince
      let isSince = version > after && current < called
      if current < before.softPurged.called || isSince {
        let purge = isSince ? called : before.softPurged.called
        let name = isSince ? "since \(after)" : TierPurge.kindNames[before.softPurged.kind]
        return (
          .unvalidated,
          "\(text), validated at \(expectations.validated(version)); softly purged (\(name)) at \(purge); the load began "
            + "at \(before.tick)"
        )
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
