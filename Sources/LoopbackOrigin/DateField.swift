import Glibc

/// The values of date fields, in the format that HTTP requires of senders (RFC 9110 section 5.6.7).
enum DateField {
  private static let days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
  private static let months = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
  ]

  /// Formats seconds since 1970 like `Sun, 06 Nov 1994 08:49:37 GMT`.
  static func text(_ seconds: Int) -> String {
    var time = time_t(seconds)
    var parts = tm()
    gmtime_r(&time, &parts)
    let date = "\(twoDigits(parts.tm_mday)) \(months[Int(parts.tm_mon)]) \(parts.tm_year + 1900)"
    let clock = "\(twoDigits(parts.tm_hour)):\(twoDigits(parts.tm_min)):\(twoDigits(parts.tm_sec))"
    return "\(days[Int(parts.tm_wday)]), \(date) \(clock) GMT"
  }

  /// Parses a date in this format into seconds since 1970, or nil.
  static func seconds(_ text: String) -> Int? {
    let words = text.split(separator: " ")
    guard words.count == 6, words[5] == "GMT", let month = months.firstIndex(of: String(words[2])),
      let day = CInt(words[1]), let year = CInt(words[3])
    else { return nil }
    let clock = words[4].split(separator: ":").compactMap { CInt($0) }
    guard clock.count == 3 else { return nil }
    var parts = tm()
    parts.tm_mday = day
    parts.tm_mon = CInt(month)
    parts.tm_year = year - 1900
    (parts.tm_hour, parts.tm_min, parts.tm_sec) = (clock[0], clock[1], clock[2])
    return timegm(&parts)
  }

  private static func twoDigits(_ number: CInt) -> String {
    number < 10 ? "0\(number)" : "\(number)"
  }
}
