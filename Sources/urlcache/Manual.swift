/// What a subcommand takes and does: the parser goes by it, and `--help` prints it.
struct Manual {
  let name: String
  /// A few words for the overview.
  let summary: String
  /// What follows the name, a line for each form.
  let usage: [String]
  /// What it does, in lines of at most 100 columns.
  let discussion: String
  var operandName = "an argument"
  var operandCount: ClosedRange<Int> = 0...0
  var options: [Option] = []
  /// What the exit codes 0 and 1 mean here.
  var success = "done"
  var failure = "failed; a line on standard error says why"
  /// Not to be listed: for the tool's own use.
  var isHidden = false

  private static let help = Option(name: "help", help: "Shows this.")

  var allOptions: [Option] { options + [Self.help] }

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

  static func overview(of commands: [any Command.Type]) -> String {
    var text = """
      Usage: urlcache COMMAND [ARGUMENT...]

      Fetches URLs through an HTTP cache, looks into a cache's directory, and purges it.

      Commands:

      """
    for manual in commands.map({ $0.manual }) where !manual.isHidden {
      text += "  " + manual.name.padded(to: 8) + " " + manual.summary + "\n"
    }
    return text + """

      Options:
        --help     Shows this, or the manual of a command: urlcache COMMAND --help.
        --version  Shows the version.

      Exit codes: 0 done; 1 failed; 2 wrong arguments. When the reader of standard output goes away, the tool stops
      without a word and with 0.

      """
  }
}

extension String {
  /// With spaces behind, to a number of columns.
  func padded(to width: Int) -> String {
    self + String(repeating: " ", count: max(0, width - count))
  }

  /// With spaces in front, to a number of columns.
  func aligned(to width: Int) -> String {
    String(repeating: " ", count: max(0, width - count)) + self
  }
}
