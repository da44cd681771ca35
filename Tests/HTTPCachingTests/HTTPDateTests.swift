import Foundation
import HTTPCaching
import Testing

@Suite("HTTP dates")
struct HTTPDateTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let text: String
    /// Seconds since 1970.
    let seconds: Double?

    init(_ id: String, _ section: String, rows: [Int], _ text: String, _ seconds: Double?) {
      self.id = id
      self.section = section
      self.rows = rows
      self.text = text
      self.seconds = seconds
    }
  }

  static let sample = 784_111_777.0

  static let cases: [Case] = [
    Case("date-imf", "9110 5.6.7", rows: [42], "Sun, 06 Nov 1994 08:49:37 GMT", sample),
    Case("date-850", "9110 5.6.7", rows: [42], "Sunday, 06-Nov-94 08:49:37 GMT", sample),
    Case("date-asctime", "9110 5.6.7", rows: [42], "Sun Nov  6 08:49:37 1994", sample),
    Case("date-asctime-two-digits", "9110 5.6.7", rows: [42], "Wed Nov 16 08:49:37 1994", sample + 864_000),
    Case("date-any-case", "9111 4.2", rows: [38], "SUN, 06 nOV 1994 08:49:37 gmt", sample),
    Case("date-850-any-case", "9111 4.2", rows: [38], "sUNDAY, 06-nov-94 08:49:37 gmt", sample),
    Case("date-outer-space", "9110 5.5", rows: [42], " Sun, 06 Nov 1994 08:49:37 GMT\t", sample),
    Case("date-leap-day", "9110 5.6.7", rows: [42], "Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
    Case("date-no-leap-day", "9110 5.6.7", rows: [42], "Wed, 29 Feb 2023 00:00:00 GMT", nil),
    Case("date-1900-no-leap", "9110 5.6.7", rows: [42], "Thu, 29 Feb 1900 00:00:00 GMT", nil),
    Case("date-leap-second", "9110 5.6.7", rows: [42], "Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800),
    Case("date-year-9999", "9110 5.6.7", rows: [42], "Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
    Case("date-year-0", "9110 5.6.7", rows: [42], "Sat, 01 Jan 0000 00:00:00 GMT", -62_167_219_200),
    Case("date-utc", "9111 4.2", rows: [41], "Sun, 06 Nov 1994 08:49:37 UTC", nil),
    Case("date-offset", "9111 4.2", rows: [41], "Sun, 06 Nov 1994 08:49:37 +0000", nil),
    Case("date-no-zone", "9111 4.2", rows: [41], "Sun, 06 Nov 1994 08:49:37", nil),
    Case("date-two-digit-year", "9110 5.6.7", rows: [42], "Sun, 06 Nov 94 08:49:37 GMT", nil),
    Case("date-no-comma", "9110 5.6.7", rows: [42], "Sun 06 Nov 1994 08:49:37 GMT", nil),
    Case("date-two-spaces", "9110 5.6.7", rows: [42], "Sun, 06  Nov  1994 08:49:37 GMT", nil),
    Case("date-dashes", "9110 5.6.7", rows: [42], "Sun, 06-Nov-1994 08:49:37 GMT", nil),
    Case("date-periods", "9110 5.6.7", rows: [42], "Sun, 06 Nov 1994 08.49.37 GMT", nil),
    Case("date-short-hour", "9110 5.6.7", rows: [42], "Sun, 06 Nov 1994 8:49:37 GMT", nil),
    Case("date-hour-24", "9110 5.6.7", rows: [42], "Sun, 06 Nov 1994 24:00:00 GMT", nil),
    Case("date-bad-day-name", "9110 5.6.7", rows: [42], "Xxx, 06 Nov 1994 08:49:37 GMT", nil),
    Case("date-day-0", "9110 5.6.7", rows: [42], "Sun, 00 Nov 1994 08:49:37 GMT", nil),
    Case("date-behind", "9110 5.6.7", rows: [42], "Sun, 06 Nov 1994 08:49:37 GMT,", nil),
    Case("date-0", "9111 5.3", rows: [44], "0", nil),
    Case("date-empty", "9111 5.3", rows: [44], "", nil),
    Case("date-850-49-years-ahead", "9110 5.6.7", rows: [43], "Friday, 15-Jan-76 08:00:00 GMT", 3_346_300_800),
    Case("date-850-50-years-ahead", "9110 5.6.7", rows: [43], "Friday, 15-Jan-77 08:00:00 GMT", 3_377_923_200),
    Case("date-850-past-50-years", "9110 5.6.7", rows: [43], "Friday, 15-Jan-77 08:00:01 GMT", 222_163_201),
    Case("date-850-past-century", "9110 5.6.7", rows: [43], "Friday, 15-Jan-99 08:00:00 GMT", 916_387_200),
  ]

  @Test("Valid dates are parsed and all other text is rejected", arguments: cases)
  func parses(_ test: Case) {
    #expect(HTTPDate.parse(test.text, now: start)?.timeIntervalSince1970 == test.seconds)
  }

  /// Row 40; RFC 9111, 4.2: the time zone of the process has no influence.
  @Test func formatsAndParsesBack() {
    var random = SeededGenerator(seed: 20_270_115)
    for _ in 0..<2000 {
      let date = Date(timeIntervalSince1970: Double(Int.random(in: -62_167_219_200...253_402_300_799, using: &random)))
      let text = HTTPDate.format(date)
      #expect(HTTPDate.parse(text, now: start) == date, "seed 20270115, \(text)")
    }
  }

  /// Row 39; RFC 9111, 4.2.
  @Test(
    "Formatting rounds down and clamps",
    arguments: [
      (784_111_777.9, "Sun, 06 Nov 1994 08:49:37 GMT"), (-0.5, "Wed, 31 Dec 1969 23:59:59 GMT"),
      (.infinity, "Fri, 31 Dec 9999 23:59:59 GMT"), (-.infinity, "Sat, 01 Jan 0000 00:00:00 GMT"),
      (.nan, "Sat, 01 Jan 0000 00:00:00 GMT"),
    ] as [(Double, String)])
  func formats(seconds: Double, text: String) {
    #expect(HTTPDate.format(Date(timeIntervalSince1970: seconds)) == text)
  }
}
