#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// The data for reuse decisions, computed when a response is stored, so that a fresh hit parses no header field.
///
/// A value of fixed size: six members of 8 bytes and 32 flag bits. All numbers are seconds, finite, and at most
/// `FreshnessInfo.maximumSeconds`, so arithmetic cannot trap for any response.
public struct FreshnessInfo: Sendable, Hashable {
  /// Boolean properties of a response.
  public struct Flags: OptionSet, Sendable, Hashable {
    /// The bits. A storage format can keep them, because meanings never change.
    public let rawValue: UInt32

    /// Creates flags from their bits.
    @inlinable
    public init(rawValue: UInt32) { self.rawValue = rawValue }

    /// Unqualified `no-cache`: every use requires validation.
    public static let noCache = Flags(rawValue: 1 << 0)
    /// `must-revalidate`: never served stale.
    public static let mustRevalidate = Flags(rawValue: 1 << 1)
    /// `proxy-revalidate`, or `s-maxage`: never served stale by a shared cache.
    public static let proxyRevalidate = Flags(rawValue: 1 << 2)
    /// `immutable`, over HTTPS and with a body of known length: no validation while fresh (RFC 8246).
    public static let immutable = Flags(rawValue: 1 << 3)
    /// The lifetime is heuristic (RFC 9111, section 4.2.2).
    public static let heuristic = Flags(rawValue: 1 << 4)
    /// The stored response has a strong entity tag.
    public static let strongETag = Flags(rawValue: 1 << 5)
    /// The stored response has a weak entity tag.
    public static let weakETag = Flags(rawValue: 1 << 6)
    /// The stored response has a valid `Last-Modified`.
    public static let lastModified = Flags(rawValue: 1 << 7)
    /// The response is incomplete: only for ranges within it, or for completing it (RFC 9111, section 3.3).
    public static let incomplete = Flags(rawValue: 1 << 8)
    /// The freshness was computed for a shared cache.
    public static let sharedMode = Flags(rawValue: 1 << 9)
    // Bit 10 is unused. Stores may contain it.
    /// The request had `Authorization`, or a user in its URL.
    public static let authorized = Flags(rawValue: 1 << 11)
    /// Never fresh, regardless of the lifetime: a response to HEAD showed that it is outdated (RFC 9111, 4.3.5).
    public static let stale = Flags(rawValue: 1 << 12)
    /// `no-transform`: the body must not be changed.
    public static let noTransform = Flags(rawValue: 1 << 13)
    /// `Date` was missing or invalid, and the time of receipt replaces it.
    public static let dateAssumed = Flags(rawValue: 1 << 14)
    /// The response has a `Cache-Groups` field. RFC 9875.
    public static let hasGroups = Flags(rawValue: 1 << 15)
    /// The body is stored without the coding of `Content-Encoding`, because the transport decoded it.
    public static let decoded = Flags(rawValue: 1 << 16)
    /// Never fresh: a soft purge ended the lifetime. In contrast to ``stale``, the response may be served stale.
    public static let softPurged = Flags(rawValue: 1 << 17)
    /// The response may have been removed on another machine: every use requires validation, with every policy.
    ///
    /// A storage sets this on each response that it returns while the machine has no valid lease. In a stored record
    /// the flag is set only by a soft purge at ``FreshnessInfo/suspicionDate``.
    public static let suspect = Flags(rawValue: 1 << 18)

    static let neverFresh: Flags = [.stale, .softPurged]
  }

  /// The maximum number of seconds: 2^31, about 68 years (RFC 9111, section 1.3).
  public static let maximumSeconds: Double = 2_147_483_648

  /// The date of a soft purge after which every use requires validation: `Date.distantPast`.
  ///
  /// Because it is the earliest date, it outweighs other soft purges of a response.
  public static let suspicionDate = Date.distantPast

  /// The time at which the response was received.
  public var responseTime: Date
  /// The corrected initial age in seconds (RFC 9111, 4.2.3).
  public var initialAge: Double
  /// The freshness lifetime in seconds (RFC 9111, 4.2.1).
  public var lifetime: Double
  /// The `Date` field, or the time of receipt.
  public var date: Date
  /// `stale-while-revalidate` in seconds after the lifetime; negative if absent (RFC 5861, section 3).
  public var staleWhileRevalidate: Double
  /// `stale-if-error` in seconds after the lifetime; negative if absent (RFC 5861, section 4).
  public var staleIfError: Double
  /// Boolean properties of the response.
  public var flags: Flags

  /// Creates a value from its members, for reading it from storage.
  public init(
    responseTime: Date, initialAge: Double, lifetime: Double, date: Date, staleWhileRevalidate: Double = -1,
    staleIfError: Double = -1, flags: Flags = []
  ) {
    self.responseTime = responseTime
    self.initialAge = initialAge
    self.lifetime = lifetime
    self.date = date
    self.staleWhileRevalidate = staleWhileRevalidate
    self.staleIfError = staleIfError
    self.flags = flags
  }

  /// Returns the age in seconds at `now`: the initial age plus the time since receipt (RFC 9111, section 4.2.3).
  ///
  /// Never negative. If the clock was set back since, the time since receipt counts as 0; see ``isFresh(at:)``.
  public func currentAge(at now: Date) -> Double { age(afterResidence: residence(at: now)) }

  /// Returns the seconds since the receipt; negative if the clock was set back since.
  private func residence(at now: Date) -> Double {
    now.timeIntervalSinceReferenceDate - responseTime.timeIntervalSinceReferenceDate
  }

  private func age(afterResidence resident: Double) -> Double {
    // Comparisons with NaN are false, so a corrupt member leads to 0 or the maximum, never to a trap.
    let age = (initialAge > 0 ? initialAge : 0) + (resident > 0 ? resident : 0)
    return age < Self.maximumSeconds ? age : Self.maximumSeconds
  }

  /// Returns the remaining freshness lifetime (TTL) in seconds at `now`; 0 or negative when stale.
  public func timeToLive(at now: Date) -> Double {
    let remaining = lifetime - currentAge(at: now)
    return flags.isDisjoint(with: .neverFresh) && !isFromFuture(at: now) ? remaining : min(0, remaining)
  }

  /// Whether the response is fresh at `now`: its lifetime exceeds its age (RFC 9111, section 4.2).
  ///
  /// A response that was received after `now` is stale, because the clock was set back since, and its age is unknown.
  public func isFresh(at now: Date) -> Bool {
    let resident = residence(at: now)
    return flags.isDisjoint(with: .neverFresh) && resident >= 0 && lifetime > age(afterResidence: resident)
  }

  /// Whether the time of receipt is after `now`, because the clock was set back since. Then the age is unknown.
  ///
  /// No difference is tolerated: all threads and processes of a machine read one clock, decisions read it after they
  /// found the response, and machines of a fleet exchange ages instead of times.
  func isFromFuture(at now: Date) -> Bool {
    // The comparison is false for a corrupt time that is NaN.
    !(residence(at: now) >= 0)
  }

  /// Returns the seconds from `now` during which the response can be used without a successful validation.
  ///
  /// These are its TTL and the longest window in which it may be served stale, also if the origin fails (RFC 5861).
  /// Negative if that time has passed, and infinite if the options permit any stale response while the origin is
  /// unreachable.
  package func remainingUse(at now: Date, options: CachingOptions) -> Double {
    let timeToLive = timeToLive(at: now)
    guard !flags.contains(.stale), ReuseEvaluation.staleForbidden(self, options) == nil else { return timeToLive }
    if options.servesStaleWhenUnreachable { return .infinity }
    if hasUnknownStaleness(at: now) { return timeToLive }
    let windowOnError = staleIfError >= 0 ? staleIfError : options.staleIfErrorByDefault ?? 0
    return timeToLive + max(0, staleWhileRevalidate, windowOnError)
  }

  /// Returns the freshness after a soft purge at `date`, which ends the lifetime unless it ended before.
  ///
  /// `stale-while-revalidate` and `stale-if-error` count from the end of the lifetime. The response stays stale even if
  /// the clock is set back. Of several soft purges, the earliest counts, regardless of their order.
  ///
  /// A soft purge at ``suspicionDate`` also ends these windows: the response may have been removed on another machine.
  public func softPurged(at date: Date) -> FreshnessInfo {
    var info = self
    info.flags.insert(date <= Self.suspicionDate ? [.softPurged, .suspect] : .softPurged)
    info.lifetime = min(lifetime, currentAge(at: date))
    return info
  }

  /// Whether the clock was set back since the response was received, or since a soft purge ended its lifetime.
  ///
  /// Then it is unknown for how long it has been stale, and no window for stale responses is open.
  func hasUnknownStaleness(at now: Date) -> Bool {
    isFromFuture(at: now) || flags.contains(.softPurged) && currentAge(at: now) < lifetime
  }

  /// Returns the age in whole seconds, rounded down, as in an `Age` field.
  public func wholeAge(at now: Date) -> Int {
    let age = currentAge(at: now)
    return age >= 0 ? Int(age) : 0
  }
}
