import Foundation
import Glibc

/// A moment in the past as a person writes it on a command line.
enum Moment {
  static let forms =
    "a date ('2026-11-21'), a date and time ('2026-11-21T14:05'), a time ('14:05') or a duration ('10m')"

  /// The moment that a text means.
  ///
  /// A date and time is ISO 8601: seconds and fraction may be missing, and without a zone it is local time. A date is its
  /// first instant, a time is today's, a number with s, m, h, d or w is so long ago.
  ///
  /// - Throws: `UsageError` for another text, and for a moment to come: it would select nothing, and is a slip.
  static func parse(_ text: String, now: Date) throws -> Date {
    guard let date = duration(text, now) ?? calendar(text, now) else {
      throw UsageError("'\(text)' is no moment; give \(forms)")
    }
    guard date <= now else { throw UsageError("'\(text)' is yet to come (\(Format.localTime(date)))") }
    return date
  }

  private static func duration(_ text: String, _ now: Date) -> Date? {
    let units: [Character: Double] = ["s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800]
    guard let last = text.last, let unit = units[last], let number = Double(text.dropLast()),
      text.first?.isNumber == true, number.isFinite
    else { return nil }
    return now - number * unit
  }

  private static func calendar(_ text: String, _ now: Date) -> Date? {
    let pattern =
      /(?:(\d{4})-(\d\d)-(\d\d))?(?:(?:^|[T ])(\d\d):(\d\d)(?::(\d\d)([.,]\d{1,9})?)?\s?(Z|[+-]\d\d(?::?\d\d)?)?)?/
    guard !text.isEmpty, let match = text.wholeMatch(of: pattern)?.output else { return nil }
    func number(_ text: Substring?) -> CInt { text.flatMap { CInt($0) } ?? 0 }
    var parts = tm()
    if let year = match.1 {
      (parts.tm_year, parts.tm_mon, parts.tm_mday) = (number(year) - 1900, number(match.2) - 1, number(match.3))
    } else {
      var seconds = time_t(now.timeIntervalSince1970)
      var today = tm()
      localtime_r(&seconds, &today)
      (parts.tm_year, parts.tm_mon, parts.tm_mday) = (today.tm_year, today.tm_mon, today.tm_mday)
      // A zone without a date leaves open which day is meant.
      guard match.4 != nil, match.8 == nil else { return nil }
    }
    (parts.tm_hour, parts.tm_min, parts.tm_sec) = (number(match.4), number(match.5), number(match.6))
    let wanted = parts
    guard wanted.tm_hour < 24, wanted.tm_min < 60, wanted.tm_sec < 60 else { return nil }
    let fraction = match.7.flatMap { Double("0." + $0.dropFirst()) } ?? 0
    let seconds: time_t
    if let zone = match.8 {
      guard let offset = offset(zone) else { return nil }
      seconds = timegm(&parts) - offset
    } else {
      parts.tm_isdst = -1
      seconds = mktime(&parts)
      // An hour that the clocks skip is moved; a day that the month does not have must not be.
      guard parts.tm_hour == wanted.tm_hour || parts.tm_mday == wanted.tm_mday else { return nil }
    }
    guard parts.tm_mday == wanted.tm_mday, parts.tm_mon == wanted.tm_mon else { return nil }
    return Date(timeIntervalSince1970: Double(seconds) + fraction)
  }

  /// The seconds east of Greenwich.
  private static func offset(_ zone: Substring) -> Int? {
    if zone == "Z" { return 0 }
    let digits = zone.dropFirst().filter { $0 != ":" }
    guard let hours = Int(digits.prefix(2)), hours < 24 else { return nil }
    let minutes = Int(digits.dropFirst(2)) ?? 0
    guard minutes < 60 else { return nil }
    return (zone.first == "-" ? -1 : 1) * (hours * 3600 + minutes * 60)
  }
}
