import Foundation
import LMDBURLCache

/// `urlcache generate`: writes manual pages and shell completions, for packages.
enum GenerateCommand: Command {
  static let manual = CommandHelp(
    name: "generate", summary: "Writes the manual pages or a shell completion.",
    usage: ["man DIR", "bash", "zsh", "fish"],
    discussion: """
      Writes the manual pages of the tool and of each command to the existing directory DIR, or the completion for a
      shell to standard output. They are made from the same definitions as --help.

        urlcache generate bash > /usr/share/bash-completion/completions/urlcache
        urlcache generate zsh > /usr/share/zsh/vendor-completions/_urlcache
        urlcache generate fish > /usr/share/fish/vendor_completions.d/urlcache.fish
      """,
    operandName: "'man', 'bash', 'zsh' or 'fish'", operandCount: 1...2, failure: "a file cannot be written",
    isHidden: true)

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let manuals = URLCacheTool.commands.map { $0.manual }.filter { !$0.isHidden }.map(portable)
    switch (arguments.operands[0], arguments.operands.dropFirst().first) {
    case ("man", let directory?):
      try write(ManualPage.overview(of: manuals), "urlcache.1", in: directory)
      for manual in manuals { try write(ManualPage.page(of: manual), "urlcache-\(manual.name).1", in: directory) }
    case ("man", nil): throw UsageError("the directory is missing")
    case ("bash", nil): try Output.write(BashCompletion.script(for: manuals))
    case ("zsh", nil): try Output.write(ZshCompletion.script(for: manuals))
    case ("fish", nil): try Output.write(FishCompletion.script(for: manuals))
    default: throw UsageError("use 'man DIR', 'bash', 'zsh' or 'fish'")
    }
    return .success
  }

  /// Returns a manual without the paths of this user.
  private static func portable(_ manual: CommandHelp) -> CommandHelp {
    var manual = manual
    for index in manual.options.indices {
      manual.options[index].help = manual.options[index].help.replacingOccurrences(
        of: LMDBURLCache.defaultCachePath, with: "$XDG_CACHE_HOME/LMDBURLCache or ~/.cache/LMDBURLCache.")
    }
    return manual
  }

  private static func write(_ text: String, _ name: String, in directory: String) throws {
    let output = try OutputFile(file: "\(directory)/\(name)")
    defer { output.discard() }
    try output.write(Data(text.utf8))
    try output.commit()
  }
}
