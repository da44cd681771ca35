/// The completion for fish.
enum FishCompletion {
  static func script(for manuals: [CommandHelp]) -> String {
    var text = """
      # Completion of urlcache for fish. Made by 'urlcache generate fish'.
      function __urlcache_has_no_command
        test (count (commandline -opc)) -eq 1
      end
      function __urlcache_command_is
        set -l words (commandline -opc)
        test (count $words) -ge 2; and test $words[2] = $argv[1]
      end
      complete -c urlcache -f
      complete -c urlcache -n __urlcache_has_no_command -l help -d 'Shows the help'
      complete -c urlcache -n __urlcache_has_no_command -l version -d 'Shows the version'

      """
    for manual in manuals {
      text += "complete -c urlcache -n __urlcache_has_no_command -a \(manual.name) -d \(quoted(manual.summary))\n"
    }
    let names = manuals.map(\.name).joined(separator: " ")
    text += "complete -c urlcache -n __urlcache_has_no_command -a help -d 'Shows the manual of a command.'\n"
    text += "complete -c urlcache -n '__urlcache_command_is help' -a '\(names)'\n"
    for manual in manuals {
      let command = "complete -c urlcache -n '__urlcache_command_is \(manual.name)'"
      for option in manual.allOptions {
        let help = option.help.split(separator: "\n").joined(separator: " ")
        // Without its value, an option is complete.
        let takesValue = option.placeholder != nil && !option.isValueOptional
        let value = takesValue ? " -r" + words(Completion(valueOf: option)) : ""
        text += "\(command) -l \(option.name)\(value) -d \(quoted(help))\n"
      }
      text += command + words(Completion(operandsOf: manual)) + "\n"
    }
    return text
  }

  private static func words(_ completion: Completion) -> String {
    switch completion {
    case .nothing: " -f"
    case .file: " -F"
    case .directory: " -f -a '(__fish_complete_directories)'"
    case .words(let words): " -f -a \(quoted(words.joined(separator: " ")))"
    }
  }

  private static func quoted(_ text: String) -> String {
    var quoted = "'"
    for character in text {
      if character == "'" || character == "\\" { quoted.append("\\") }
      quoted.append(character)
    }
    return quoted + "'"
  }
}
