import CachingClient
import Foundation
import Glibc

/// A time in the past, as written on a command line.
enum TimeArgument {
  static let forms =
    "a date ('2026-11-21'), a date and time ('2026-11-21T14:05'), a time ('14:05') or a duration ('10m')"

  /// Parses a time.
  ///
  /// A date and time is ISO 8601: seconds and fraction are optional, and without a zone it is local time. A date means
  /// its first instant. A time means today's. A number with s, m, h, d or w means that long ago.
  ///
  /// - Throws: `UsageError` for an invalid text, and for a time in the future, which would select nothing.
  static func parse(_ text: String, now: Date) throws -> Date {
    guard let date = DurationText.seconds(text).map({ now - $0 }) ?? calendar(text, now) else {
      throw UsageError("'\(text)' is not a valid time; use \(forms)")
    }
    guard date <= now else { throw UsageError("'\(text)' is in the future (\(Format.localTime(date)))") }
    return date
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
      // With a zone but no date, the day is ambiguous.
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
      // An hour skipped by daylight saving time is moved. A day that the month does not have is invalid.
      guard parts.tm_hour == wanted.tm_hour || parts.tm_mday == wanted.tm_mday else { return nil }
    }
    guard parts.tm_mday == wanted.tm_mday, parts.tm_mon == wanted.tm_mon else { return nil }
    return Date(timeIntervalSince1970: Double(seconds) + fraction)
  }

  /// Parses a zone into seconds east of Greenwich.
  private static func offset(_ zone: Substring) -> Int? {
    if zone == "Z" { return 0 }
    let digits = zone.dropFirst().filter { $0 != ":" }
    guard let hours = Int(digits.prefix(2)), hours < 24 else { return nil }
    let minutes = Int(digits.dropFirst(2)) ?? 0
    guard minutes < 60 else { return nil }
    return (zone.first == "-" ? -1 : 1) * (hours * 3600 + minutes * 60)
  }
}
