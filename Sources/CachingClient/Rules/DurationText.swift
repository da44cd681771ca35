/// A duration as a user writes it: a number with a unit.
package enum DurationText {
  /// The description of a valid text.
  package static let form = "a number with s, m, h, d or w, such as '10m'"

  /// Returns the seconds of a number with s, m, h, d or w; nil for another text.
  package static func seconds(_ text: String) -> Double? {
    let units: [Character: Double] = ["s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800]
    // `Double` also accepts hexadecimal numbers.
    guard let last = text.last, let unit = units[last], !text.contains(where: { "xX".contains($0) }),
      let number = Double(text.dropLast()), text.first?.isNumber == true, number.isFinite
    else { return nil }
    return number * unit
  }

  /// Returns the shortest text for a whole number of seconds, such as `10m`.
  package static func text(_ seconds: Double) -> String {
    guard seconds >= 1, let whole = Int(exactly: seconds) else { return "\(seconds)s" }
    for (unit, size) in [("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60)] where whole % size == 0 {
      return "\(whole / size)\(unit)"
    }
    return "\(whole)s"
  }
}
