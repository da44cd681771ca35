import Foundation
import Glibc

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

  /// Formats like `1 response`, `2 responses`.
  static func count(_ number: Int, _ noun: String) -> String {
    "\(count(number)) \(noun)\(number == 1 ? "" : "s")"
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
    var seconds = time_t(min(max(date.timeIntervalSince1970.rounded(.down), -1e11), 1e11))
    var parts = tm()
    localtime_r(&seconds, &parts)
    func digits(_ number: CInt, _ count: Int = 2) -> String {
      let text = String(number)
      return String(repeating: "0", count: max(0, count - text.count)) + text
    }
    return "\(digits(parts.tm_year + 1900, 4))-\(digits(parts.tm_mon + 1))-\(digits(parts.tm_mday)) "
      + "\(digits(parts.tm_hour)):\(digits(parts.tm_min)):\(digits(parts.tm_sec))"
  }

  /// Formats like `2026-11-21T13:05:09.123Z`.
  static func timestamp(_ date: Date) -> String {
    // Rounded down, like the seconds of a clock.
    let milliseconds = (date.timeIntervalSince1970 * 1000).rounded(.down)
    return Date(timeIntervalSince1970: milliseconds / 1000)
      .formatted(.iso8601.year().month().day().time(includingFractionalSeconds: true).timeZone(separator: .omitted))
  }

  /// Replaces control characters of external text, which could control a terminal.
  static func visible(_ text: String) -> String {
    guard text.unicodeScalars.contains(where: \.isControl) else { return text }
    return String(String.UnicodeScalarView(text.unicodeScalars.map { $0.isControl ? "?" : $0 }))
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
  fileprivate var isControl: Bool { value < 0x20 || (0x7f...0x9f).contains(value) }
}
