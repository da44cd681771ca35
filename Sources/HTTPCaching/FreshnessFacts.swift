#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// What decides about reuse, computed once when a response is stored, so that a fresh hit parses no header field.
///
/// A fixed-size value (six 8-byte members and 32 flag bits). All numbers are seconds, finite, and at most
/// `FreshnessFacts.maximumSeconds`; whatever a response claims, arithmetic on them cannot trap.
public struct FreshnessFacts: Sendable, Hashable {
  /// Yes-or-no facts.
  public struct Flags: OptionSet, Sendable, Hashable {
    /// The bits; a stored format may keep them as they are, meanings never change.
    public let rawValue: UInt32

    /// Flags from their bits.
    @inlinable
    public init(rawValue: UInt32) { self.rawValue = rawValue }

    /// Unqualified `no-cache`: every use needs validation.
    public static let noCache = Flags(rawValue: 1 << 0)
    /// `must-revalidate`: never served stale.
    public static let mustRevalidate = Flags(rawValue: 1 << 1)
    /// `proxy-revalidate`, or `s-maxage`: never served stale by a shared cache.
    public static let proxyRevalidate = Flags(rawValue: 1 << 2)
    /// `immutable`, over HTTPS and with a body of certain size: no validation while fresh. RFC 8246.
    public static let immutable = Flags(rawValue: 1 << 3)
    /// The lifetime is a guess (RFC 9111, 4.2.2).
    public static let heuristic = Flags(rawValue: 1 << 4)
    /// A strong entity tag is stored.
    public static let strongETag = Flags(rawValue: 1 << 5)
    /// A weak entity tag is stored.
    public static let weakETag = Flags(rawValue: 1 << 6)
    /// A valid `Last-Modified` is stored.
    public static let lastModified = Flags(rawValue: 1 << 7)
    /// The body is a part of the whole: only for ranges inside it, or for completing it. RFC 9111, 3.3.
    public static let incomplete = Flags(rawValue: 1 << 8)
    /// The facts were computed for a shared cache.
    public static let sharedMode = Flags(rawValue: 1 << 9)
    /// The response has a `Vary` field.
    public static let hasVary = Flags(rawValue: 1 << 10)
    /// The request carried `Authorization`.
    public static let authorized = Flags(rawValue: 1 << 11)
    /// Never fresh, whatever the lifetime says: the answer to a HEAD showed that it is out of date (RFC 9111, 4.3.5).
    public static let stale = Flags(rawValue: 1 << 12)
    /// `no-transform`: the body must not be changed.
    public static let noTransform = Flags(rawValue: 1 << 13)
    /// `Date` was missing or invalid; the time of receipt stands for it.
    public static let dateAssumed = Flags(rawValue: 1 << 14)
    /// The response has a `Cache-Groups` field. RFC 9875.
    public static let hasGroups = Flags(rawValue: 1 << 15)
    /// The body is not coded as `Content-Encoding` says: whoever brought it has undone that.
    public static let decoded = Flags(rawValue: 1 << 16)
  }

  /// The largest number of seconds that is distinguished: 2^31, about 68 years. RFC 9111, 1.3.
  public static let maximumSeconds: Double = 2_147_483_648

  /// When the response was received.
  public var responseTime: Date
  /// The corrected initial age in seconds (RFC 9111, 4.2.3).
  public var initialAge: Double
  /// The freshness lifetime in seconds (RFC 9111, 4.2.1).
  public var lifetime: Double
  /// The `Date` field, else the time of receipt.
  public var date: Date
  /// `stale-while-revalidate` in seconds past the lifetime; negative: none. RFC 5861, 3.
  public var staleWhileRevalidate: Double
  /// `stale-if-error` in seconds past the lifetime; negative: none. RFC 5861, 4.
  public var staleIfError: Double
  /// Yes-or-no facts.
  public var flags: Flags

  /// Facts from their members, for reading them back from storage.
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

  /// The age in seconds at `now`: the initial age plus the time since receipt, never negative (RFC 9111, 4.2.3). A
  /// clock that was set back counts as no time passed.
  public func currentAge(at now: Date) -> Double {
    let resident = now.timeIntervalSinceReferenceDate - responseTime.timeIntervalSinceReferenceDate
    // Comparisons with NaN are false, so a damaged member ends in 0 or the maximum, never in a trap.
    let age = (initialAge > 0 ? initialAge : 0) + (resident > 0 ? resident : 0)
    return age < Self.maximumSeconds ? age : Self.maximumSeconds
  }

  /// The seconds of freshness left at `now`; negative: stale for so long.
  public func remaining(at now: Date) -> Double {
    flags.contains(.stale) ? min(0, lifetime - currentAge(at: now)) : lifetime - currentAge(at: now)
  }

  /// Whether the response is fresh at `now` (RFC 9111, 4.2: lifetime greater than age).
  public func isFresh(at now: Date) -> Bool {
    !flags.contains(.stale) && lifetime > currentAge(at: now)
  }

  /// The age as a field value holds it: whole seconds, rounded down.
  public func wholeAge(at now: Date) -> Int {
    let age = currentAge(at: now)
    return age >= 0 ? Int(age) : 0
  }
}
