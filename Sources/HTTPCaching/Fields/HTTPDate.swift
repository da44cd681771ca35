#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Dates in header fields (RFC 9110, section 5.6.7), without locale, time zone or a shared formatter.
public enum HTTPDate {
  /// Parses a date in one of the three formats; `nil` if it is malformed or not in GMT.
  ///
  /// Letters can have any case (RFC 9111, section 4.2). The name of the day is not compared with the date.
  /// - Parameters:
  ///   - text: The value of the field.
  ///   - now: The reference for two-digit years: more than 50 years ahead means the past century.
  public static func parse(_ text: String, now: Date) -> Date? {
    var text = text.trimmingFieldSpace()
    return text.withUTF8 { bytes in
      parseIMFFixdate(bytes) ?? parseRFC850(bytes, now: now) ?? parseAsctime(bytes)
    }
  }

  /// Formats a date as IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT`, rounded down to seconds.
  ///
  /// Years outside 0 to 9999 are clamped.
  public static func format(_ date: Date) -> String {
    let civil = CivilTime(date)
    return "\(days[civil.weekday]), \(padded(civil.day, 2)) \(months[civil.month - 1]) \(padded(civil.year, 4)) "
      + "\(padded(civil.second / 3600, 2)):\(padded(civil.second / 60 % 60, 2)):\(padded(civil.second % 60, 2)) GMT"
  }

  private static let days: [StaticString] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
  private static let longDays: [StaticString] = [
    "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
  ]
  private static let months: [StaticString] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
  ]

  private static func padded(_ number: Int, _ width: Int) -> String {
    let digits = String(number)
    return String(repeating: "0", count: max(0, width - digits.utf8.count)) + digits
  }

  /// Parses a date like `Sun, 06 Nov 1994 08:49:37 GMT`.
  private static func parseIMFFixdate(_ bytes: UnsafeBufferPointer<UInt8>) -> Date? {
    guard bytes.count == 29, shortDay(bytes, 0), literal(bytes, 3, ", "), let day = number(bytes, 5, 2),
      literal(bytes, 7, " "), let month = month(bytes, 8), literal(bytes, 11, " "), let year = number(bytes, 12, 4),
      literal(bytes, 16, " "), let second = time(bytes, 17), literal(bytes, 25, " GMT")
    else { return nil }
    return CivilTime(year: year, month: month, day: day, second: second)?.date
  }

  /// Parses a date like `Sunday, 06-Nov-94 08:49:37 GMT`.
  private static func parseRFC850(_ bytes: UnsafeBufferPointer<UInt8>, now: Date) -> Date? {
    guard let comma = bytes.firstIndex(of: UInt8(ascii: ",")), bytes.count == comma + 24,
      longDays.contains(where: { $0.utf8CodeUnitCount == comma && literal(bytes, 0, $0) }),
      literal(bytes, comma, ", "), let day = number(bytes, comma + 2, 2), literal(bytes, comma + 4, "-"),
      let month = month(bytes, comma + 5), literal(bytes, comma + 8, "-"), let short = number(bytes, comma + 9, 2),
      literal(bytes, comma + 11, " "), let second = time(bytes, comma + 12), literal(bytes, comma + 20, " GMT")
    else { return nil }
    // The latest year with these digits that is at most 50 years ahead (RFC 9110, 5.6.7).
    let present = CivilTime(now)
    var year = present.year + 50
    year -= (year - short) % 100
    let horizon = (present.year + 50, present.month, present.day, present.second)
    if (year, month, day, second) > horizon { year -= 100 }
    return CivilTime(year: year, month: month, day: day, second: second)?.date
  }

  /// Parses a date like `Sun Nov  6 08:49:37 1994`.
  private static func parseAsctime(_ bytes: UnsafeBufferPointer<UInt8>) -> Date? {
    guard bytes.count == 24, shortDay(bytes, 0), literal(bytes, 3, " "), let month = month(bytes, 4),
      literal(bytes, 7, " "), let day = literal(bytes, 8, " ") ? number(bytes, 9, 1) : number(bytes, 8, 2),
      literal(bytes, 10, " "), let second = time(bytes, 11), literal(bytes, 19, " "), let year = number(bytes, 20, 4)
    else { return nil }
    return CivilTime(year: year, month: month, day: day, second: second)?.date
  }

  /// Whether the text is at offset `at`, in any case.
  private static func literal(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int, _ text: StaticString) -> Bool {
    let count = text.utf8CodeUnitCount
    guard at + count <= bytes.count else { return false }
    for index in 0..<count where bytes[at + index].asciiLowercase != text.utf8Start[index].asciiLowercase {
      return false
    }
    return true
  }

  private static func shortDay(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int) -> Bool {
    days.contains { literal(bytes, at, $0) }
  }

  private static func month(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int) -> Int? {
    months.firstIndex { literal(bytes, at, $0) }.map { $0 + 1 }
  }

  private static func number(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int, _ count: Int) -> Int? {
    guard at + count <= bytes.count else { return nil }
    var value = 0
    for byte in bytes[at..<at + count] {
      guard byte.isDigit else { return nil }
      value = value * 10 + Int(byte - UInt8(ascii: "0"))
    }
    return value
  }

  /// Parses `08:49:37` into seconds of the day; second 60 is a leap second.
  private static func time(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int) -> Int? {
    guard let hour = number(bytes, at, 2), literal(bytes, at + 2, ":"), let minute = number(bytes, at + 3, 2),
      literal(bytes, at + 5, ":"), let second = number(bytes, at + 6, 2), hour < 24, minute < 60, second <= 60
    else { return nil }
    return hour * 3600 + minute * 60 + second
  }
}

/// A UTC time in the Gregorian calendar, computed by counting days; years 0 to 9999.
private struct CivilTime {
  let year: Int
  let month: Int
  let day: Int
  /// The second of the day.
  let second: Int

  init?(year: Int, month: Int, day: Int, second: Int) {
    let isLeap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
    let dayCount =
      switch month {
      case 2: isLeap ? 29 : 28
      case 4, 6, 9, 11: 30
      default: 31
      }
    guard (0...9999).contains(year), (1...12).contains(month), (1...dayCount).contains(day) else { return nil }
    self.year = year
    self.month = month
    self.day = day
    self.second = second
  }

  init(_ date: Date) {
    // The first second of year 0 and the last of year 9999. NaN becomes the first.
    let seconds = date.timeIntervalSince1970
    let clamped = seconds >= -62_167_219_200 ? min(seconds, 253_402_300_799) : -62_167_219_200
    let whole = Int(clamped.rounded(.down))
    let days = (whole - (whole % 86_400 + 86_400) % 86_400) / 86_400
    // Count days from 1 March of year 0 in eras of 400 years, so that leap days come last.
    let shifted = days + 719_468
    let era = (shifted >= 0 ? shifted : shifted - 146_096) / 146_097
    let dayOfEra = shifted - era * 146_097
    let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
    let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
    let shiftedMonth = (5 * dayOfYear + 2) / 153
    day = dayOfYear - (153 * shiftedMonth + 2) / 5 + 1
    month = shiftedMonth < 10 ? shiftedMonth + 3 : shiftedMonth - 9
    year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
    second = whole - days * 86_400
  }

  /// The days since 1 January 1970.
  private var days: Int {
    let shiftedYear = month <= 2 ? year - 1 : year
    let era = (shiftedYear >= 0 ? shiftedYear : shiftedYear - 399) / 400
    let yearOfEra = shiftedYear - era * 400
    let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
    let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
    return era * 146_097 + dayOfEra - 719_468
  }

  var date: Date { Date(timeIntervalSince1970: Double(days * 86_400 + second)) }

  /// The day of the week; 0 is Sunday.
  var weekday: Int { ((days + 4) % 7 + 7) % 7 }
}
