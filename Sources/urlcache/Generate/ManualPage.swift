import Foundation

/// Manual pages in the format of `man`, from the definitions of `--help`.
enum ManualPage {
  static func page(of manual: CommandHelp) -> String {
    let name = "urlcache-\(manual.name)"
    var text = title(name) + ".SH NAME\n\(escaped(name)) \\- \(escaped(manual.summary.withoutFullStop))\n.SH SYNOPSIS\n"
    text += manual.usage.map { usage in
      ".B urlcache \(manual.name)\n\(escaped(usage))\n"
    }.joined(separator: ".br\n")
    text += ".SH DESCRIPTION\n" + paragraphs(manual.discussion) + ".SH OPTIONS\n"
    for option in manual.allOptions {
      let value = option.placeholder.map { " \\fI\(escaped($0))\\fR" } ?? ""
      text += ".TP\n\\fB\(escaped("--" + option.name))\\fR\(value)\n"
      text += line(option.help.split(separator: "\n").joined(separator: " ")) + "\n"
    }
    text += ".SH EXIT STATUS\n"
    for (code, meaning) in [("0", manual.success), ("1", manual.failure), ("2", "wrong arguments")] {
      text += ".TP\n.B \(code)\n\(line(meaning))\n"
    }
    return text + ".SH SEE ALSO\n.BR urlcache (1)\n"
  }

  /// Returns the page of the tool.
  static func overview(of manuals: [CommandHelp]) -> String {
    var text = title("urlcache")
    text += ".SH NAME\nurlcache \\- an HTTP cache on disk: fetch, inspect and purge\n"
    text += ".SH SYNOPSIS\n.B urlcache\n\\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n.SH DESCRIPTION\n"
    text += paragraphs(CommandHelp.introduction) + ".SH COMMANDS\n"
    for manual in manuals {
      text += ".TP\n.BR urlcache\\-\(manual.name) (1)\n\(line(manual.summary))\n"
    }
    text += ".SH OPTIONS\n.TP\n.B \\-\\-help\nShows the help, or the manual of a command.\n"
    text += ".TP\n.B \\-\\-version\nShows the version.\n.SH EXIT STATUS\n"
    text += paragraphs(CommandHelp.exitCodes)
    let pages = manuals.map { ".BR urlcache\\-\($0.name) (1)" }
    return text + ".SH SEE ALSO\n" + pages.joined(separator: ",\n") + "\n"
  }

  /// The date of the sources in `SOURCE_DATE_EPOCH`, if a build sets it, and otherwise of today.
  private static var date: String {
    let seconds = ProcessInfo.processInfo.environment["SOURCE_DATE_EPOCH"].flatMap { Double($0) }
    return String(Format.timestamp(seconds.map { Date(timeIntervalSince1970: $0) } ?? Date()).prefix(10))
  }

  private static func title(_ name: String) -> String {
    ".TH \(escaped(name.uppercased())) 1 \"\(date)\" \"urlcache \(URLCacheTool.version)\" \"User Commands\"\n"
  }

  /// Returns paragraphs that are separated by empty lines. Indented ones keep their lines.
  private static func paragraphs(_ text: String) -> String {
    text.split(separator: "\n\n").map { block in
      let lines = block.split(separator: "\n")
      let escaped = lines.map { line(String($0)) + "\n" }.joined()
      return lines.allSatisfy({ $0.hasPrefix("  ") }) ? ".nf\n" + escaped + ".fi\n" : escaped
    }.joined(separator: ".PP\n")
  }

  /// Returns a line that cannot be a request of the format.
  private static func line(_ text: String) -> String {
    let escaped = escaped(text)
    return escaped.hasPrefix(".") || escaped.hasPrefix("'") ? "\\&" + escaped : escaped
  }

  private static func escaped(_ text: String) -> String {
    var escaped = ""
    for character in text {
      switch character {
      case "\\": escaped += "\\e"
      case "-": escaped += "\\-"
      case "'": escaped += "\\(aq"
      case "`": escaped += "\\(ga"
      case "^": escaped += "\\(ha"
      case "~": escaped += "\\(ti"
      default: escaped.append(character)
      }
    }
    return escaped
  }
}

extension String {
  /// The text without a full stop at its end, as in the line of a manual page's name.
  fileprivate var withoutFullStop: String { hasSuffix(".") ? String(dropLast()) : self }
}
