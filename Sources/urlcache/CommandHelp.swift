/// The manual of a subcommand, for parsing its arguments and for `--help`.
struct CommandHelp {
  let name: String
  /// A short text for the overview.
  let summary: String
  /// The arguments after the name, one line per form.
  let usage: [String]
  /// The description, in lines of at most 120 columns.
  let discussion: String
  var operandName = "an argument"
  var operandCount: ClosedRange<Int> = 0...0
  var options: [Option] = []
  /// The meaning of the exit codes 0 and 1.
  var success = "done"
  var failure = "failed; a line on standard error says why"
  /// Whether the overview omits the command, because it is internal.
  var isHidden = false

  private static let help = Option(name: "help", help: "Shows this help.")

  var allOptions: [Option] { options + (hasDirectory ? [DirectoryOwner.option] : []) + [Self.help] }

  /// Whether the first operand is the directory of an existing cache.
  private var hasDirectory: Bool { usage.contains { $0.hasPrefix("DIR ") || $0 == "DIR" } }

  var text: String {
    var text = "Usage: " + usage.map { "urlcache \(name)\($0.isEmpty ? "" : " ")\($0)" }.joined(separator: "\n       ")
    text += "\n\n" + discussion + "\n\nOptions:\n"
    for option in allOptions {
      let left = "  --" + option.name + (option.placeholder.map { " " + $0 } ?? "")
      let lines = option.help.split(separator: "\n")
      for (index, line) in lines.enumerated() {
        text += (index == 0 ? left.padded(to: 25) : "".padded(to: 25)) + " " + line + "\n"
      }
    }
    return text + "\nExit codes:\n  0  \(success)\n  1  \(failure)\n  2  wrong arguments\n"
  }

  /// The first sentence of the overview.
  static let introduction = "Fetches URLs through an HTTP cache, inspects a cache's directory, and purges it."
  static let exitCodes = """
    Exit codes: 0 done; 1 failed; 2 wrong arguments. If standard output is closed early, the tool stops silently with
    exit code 0.
    """

  static func overview(of commands: [any Command.Type]) -> String {
    var text = """
      Usage: urlcache COMMAND [ARGUMENT...]

      \(introduction)

      Commands:

      """
    for manual in commands.map({ $0.manual }) where !manual.isHidden {
      text += "  " + manual.name.padded(to: 8) + " " + manual.summary + "\n"
    }
    return text + """

      Options:
        --help     Shows this help, or the manual of a command: urlcache COMMAND --help.
        --version  Shows the version.

      \(exitCodes)

      """
  }
}

extension String {
  /// Returns the text with spaces at its end, up to a width in columns.
  func padded(to width: Int) -> String {
    self + String(repeating: " ", count: max(0, width - count))
  }

  /// Returns the text with spaces, or zeros for a number, at its beginning, up to a width in columns.
  func aligned(to width: Int, with filler: String = " ") -> String {
    String(repeating: filler, count: max(0, width - count)) + self
  }
}
