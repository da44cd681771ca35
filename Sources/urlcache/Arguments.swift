/// An option of a command line: `--name`, or `--name VALUE` if it has a placeholder.
struct Option {
  let name: String
  /// The placeholder of the value in the manual; nil for an option without a value.
  var placeholder: String?
  var help: String
  var isRepeatable = false
  /// The permitted values, for completions; empty if there are too many to list.
  var values: [String] = []
  /// Whether the value, a number, can be left out.
  var isValueOptional = false
}

/// A parsed command line. Options can be anywhere; `--` ends them.
struct Arguments {
  private(set) var operands: [String] = []
  private var values: [String: [String]] = [:]

  /// Parses a command line.
  ///
  /// - Throws: `UsageError` for arguments that are not in the manual.
  init(_ arguments: [String], for manual: CommandHelp) throws {
    var rest = arguments[...]
    while let argument = rest.popFirst() {
      if argument == "--" {
        operands += rest
        rest = []
      } else if argument == "-h" {
        values["help"] = [""]
      } else if argument.hasPrefix("--") {
        try parseOption(argument.dropFirst(2), &rest, manual)
      } else if argument.hasPrefix("-"), argument != "-" {
        throw UsageError("there is no option '\(argument)'")
      } else {
        operands.append(argument)
      }
    }
    guard !has("help") else { return }
    if operands.count < manual.operandCount.lowerBound {
      throw UsageError("\(manual.operandName) is missing")
    }
    if operands.count > manual.operandCount.upperBound {
      throw UsageError("'\(operands[manual.operandCount.upperBound])' is one argument too many")
    }
    // An empty path would be the working directory, for example of a script with an unset variable.
    if operands.contains("") { throw UsageError("\(manual.operandName) is empty") }
  }

  private mutating func parseOption(
    _ text: Substring, _ rest: inout ArraySlice<String>, _ manual: CommandHelp
  ) throws {
    let parts = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
    let name = String(parts[0])
    guard let option = manual.allOptions.first(where: { $0.name == name }) else {
      throw UsageError("there is no option '--\(name)'")
    }
    var value = parts.count > 1 ? String(parts[1]) : nil
    if option.placeholder == nil {
      guard value == nil else { throw UsageError("--\(name) takes no value") }
    } else if value == nil, !option.isValueOptional || rest.first.flatMap({ Double($0) }) != nil {
      value = rest.popFirst()
    }
    let isPath = ["FILE", "DIR", "FOLDER"].contains(option.placeholder)
    if let placeholder = option.placeholder, value == nil && !option.isValueOptional || value == "" && isPath {
      throw UsageError("--\(name) needs a value, \(placeholder)")
    }
    guard option.isRepeatable || values[name] == nil else { throw UsageError("--\(name) is given twice") }
    values[name, default: []].append(value ?? "")
  }

  /// Whether an option was given.
  func has(_ name: String) -> Bool { values[name] != nil }

  /// Returns the value of an option; nil if it was not given.
  func value(_ name: String) -> String? { values[name]?.first }

  /// Returns all values of a repeatable option.
  func all(_ name: String) -> [String] { values[name] ?? [] }

  /// Returns the value of an option as a whole number within a range.
  func number(_ name: String, in range: ClosedRange<Int>, default standard: Int) throws -> Int {
    guard let text = value(name) else { return standard }
    guard let number = Int(text), range.contains(number) else {
      throw UsageError("--\(name) takes a number from \(range.lowerBound) to \(range.upperBound), not '\(text)'")
    }
    return number
  }
}
