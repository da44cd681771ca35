import Foundation
import Glibc
import HTTPCaching

/// Formatting of numbers and times for people, with units and only significant digits.
enum Format {
  /// Formats like `1,234,567`.
  static func count(_ number: Int) -> String {
    var text = ""
    for (index, digit) in String(number.magnitude).reversed().enumerated() {
      if index > 0, index.isMultiple(of: 3) { text.append(",") }
      text.append(digit)
    }
    return (number < 0 ? "-" : "") + String(text.reversed())
  }

  static func count(_ number: UInt64) -> String { count(Int(clamping: number)) }

  /// Formats like `1 response`, `2 responses`.
  static func count(_ number: Int, _ noun: String) -> String {
    "\(count(number)) \(noun)\(number == 1 ? "" : "s")"
  }

  /// Returns counts by name, the largest first, and those of the same size by name.
  static func mostFrequentFirst(_ counts: [String: Int]) -> [(key: String, value: Int)] {
    counts.sorted { ($1.value, $0.key) < ($0.value, $1.key) }
  }

  /// Formats like `812 B`, `5.3 KiB`, `34 MiB`.
  static func bytes(_ count: Int) -> String {
    guard count >= 1024 else { return "\(count) B" }
    var value = Double(count)
    var unit = ""
    for next in ["KiB", "MiB", "GiB", "TiB"] where value >= 1023.5 {
      value /= 1024
      unit = next
    }
    return "\(digits(value)) \(unit)"
  }

  /// Formats like `850 ns`, `12 µs`, `1.2 ms`, `3.4 s`.
  static func latency(_ nanoseconds: Int) -> String {
    switch Double(nanoseconds) {
    case ..<999.5: "\(nanoseconds) ns"
    case let value where value < 999.5e3: "\(digits(value / 1e3)) µs"
    case let value where value < 999.5e6: "\(digits(value / 1e6)) ms"
    case let value: "\(digits(value / 1e9)) s"
    }
  }

  static func latency(seconds: Double) -> String { latency(Int(seconds * 1e9)) }
  static func latency(_ duration: Duration) -> String { latency(Int(duration / .nanoseconds(1))) }

  /// Formats at least two digits, without a fraction from 10 on.
  private static func digits(_ value: Double) -> String {
    value < 9.95 ? String(format: "%.1f", value) : String(format: "%.0f", value)
  }

  /// Formats like `8.2 s`, from a minute on like ``duration(_:)``.
  static func seconds(_ seconds: Double) -> String {
    seconds < 59.95 ? String(format: "%.1f s", max(seconds, 0)) : duration(seconds)
  }

  /// Formats like `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`, `68 y`.
  static func duration(_ seconds: Double) -> String {
    guard seconds.isFinite else { return "?" }
    let whole = Int(min(max(seconds, 0), 1e12).rounded())
    func pair(_ large: Int, _ largeUnit: String, _ small: Int, _ smallUnit: String) -> String {
      small == 0 ? "\(large) \(largeUnit)" : "\(large) \(largeUnit) \(small) \(smallUnit)"
    }
    switch whole {
    case ..<60: return "\(whole) s"
    case ..<3600: return pair(whole / 60, "min", whole < 600 ? whole % 60 : 0, "s")
    case ..<86_400: return pair(whole / 3600, "h", whole % 3600 / 60, "min")
    case ..<(86_400 * 365): return pair(whole / 86_400, "d", whole % 86_400 / 3600, "h")
    default: return "\(whole / (86_400 * 365)) y"
    }
  }

  /// Formats the remaining freshness lifetime, or the time since it ended.
  static func timeToLive(_ seconds: Double) -> String {
    if seconds > 0 { return duration(seconds) }
    return seconds > -1 ? "stale" : "stale \(duration(-seconds))"
  }

  /// Formats like `2026-11-21 14:05:09`, in the local time zone.
  static func localTime(_ date: Date) -> String {
    var seconds = wholeSeconds(date)
    var parts = tm()
    localtime_r(&seconds, &parts)
    return time(parts, separator: " ")
  }

  /// Formats like `2026-11-21T13:05:09.123Z`.
  static func timestamp(_ date: Date) -> String {
    var seconds = wholeSeconds(date)
    var parts = tm()
    gmtime_r(&seconds, &parts)
    // Rounded down, like the seconds of a clock. The microsecond allows for the rounding of the date itself.
    let milliseconds = Int((date.timeIntervalSince1970 - Double(seconds) + 1e-6) * 1000)
    return "\(time(parts, separator: "T")).\(digits(min(max(milliseconds, 0), 999), 3))Z"
  }

  private static func wholeSeconds(_ date: Date) -> time_t {
    time_t(min(max(date.timeIntervalSince1970.rounded(.down), -1e11), 1e11))
  }

  private static func time(_ parts: tm, separator: String) -> String {
    "\(digits(parts.tm_year + 1900, 4))-\(digits(parts.tm_mon + 1))-\(digits(parts.tm_mday))"
      + "\(separator)\(digits(parts.tm_hour)):\(digits(parts.tm_min)):\(digits(parts.tm_sec))"
  }

  /// Formats a number with zeros at its beginning.
  private static func digits(_ number: some BinaryInteger, _ count: Int = 2) -> String {
    String(number).aligned(to: count, with: "0")
  }

  /// Formats a hexadecimal number with zeros at its beginning.
  static func hexadecimal(_ number: some FixedWidthInteger) -> String {
    String(number, radix: 16).aligned(to: type(of: number).bitWidth / 4, with: "0")
  }

  /// Replaces the characters of external text that are ``Unicode/Scalar/isUnprintable``.
  static func visible(_ text: String) -> String {
    guard !text.utf8.allSatisfy({ 0x20..<0x7f ~= $0 }), text.unicodeScalars.contains(where: \.isUnprintable) else {
      return text
    }
    return String(String.UnicodeScalarView(text.unicodeScalars.map { $0.isUnprintable ? "?" : $0 }))
  }

  /// Returns the text of a URL without user and password.
  static func withoutUser(_ url: String) -> String {
    guard let parsed = URL(string: url), parsed.hasUserInformation else { return url }
    return parsed.textWithoutUserInformation
  }

  /// Like ``visible(_:)``, and cuts a long text, so that a line about it stays readable.
  static func shortened(_ text: String) -> String {
    let limit = 200
    let start = text.unicodeScalars.prefix(limit)
    return visible(String(start)) + (start.endIndex < text.unicodeScalars.endIndex ? "…" : "")
  }

  /// Formats a table with columns of the required width. The columns in `rightAligned` are aligned to the right.
  ///
  /// The last column is not padded.
  static func table(_ rows: [[String]], rightAligned: Set<Int>) -> String {
    var widths: [Int] = []
    return table(rows, rightAligned: rightAligned, widths: &widths)
  }

  /// Formats a part of a table: `widths` are the widths of the previous parts, and are updated.
  static func table(_ rows: [[String]], rightAligned: Set<Int>, widths: inout [Int]) -> String {
    for row in rows {
      for (column, cell) in row.enumerated() {
        if column == widths.count { widths.append(0) }
        widths[column] = max(widths[column], cell.count)
      }
    }
    return rows.map { row in
      let cells = row.enumerated().map { column, cell in
        if rightAligned.contains(column) { return cell.aligned(to: widths[column]) }
        return column == row.count - 1 ? cell : cell.padded(to: widths[column])
      }
      return cells.joined(separator: "  ") + "\n"
    }.joined()
  }
}

extension Unicode.Scalar {
  /// Whether the character could control a terminal, change the order of the text around it, or hide in it.
  ///
  /// These are the control characters (U+0000 to U+001F, U+007F to U+009F), the separators of lines and paragraphs, and
  /// the format characters, such as direction controls and characters without a width.
  var isUnprintable: Bool {
    guard value >= 0x7f else { return value < 0x20 }
    switch properties.generalCategory {
    case .control, .format, .lineSeparator, .paragraphSeparator: return true
    default: return false
    }
  }
}
