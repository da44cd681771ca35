/// The completion of an argument.
enum Completion: Equatable {
  case nothing
  case file
  case directory
  case words([String])

  /// Returns the completion of an option's value.
  init(valueOf option: Option) {
    switch option.placeholder {
    case _ where !option.values.isEmpty: self = .words(option.values)
    case "FILE": self = .file
    case "DIR", "FOLDER": self = .directory
    default: self = .nothing
    }
  }

  /// Returns the completion of a command's operands. The usage begins with the first one.
  init(operandsOf manual: CommandHelp) {
    let usage = manual.usage.first ?? ""
    let verbs = manual.usage.compactMap { $0.split(separator: " ").first }.filter { $0.allSatisfy(\.isLowercase) }
    self =
      !verbs.isEmpty
      ? .words(verbs.map(String.init))
      : usage.hasPrefix("DIR") ? .directory : usage.hasPrefix("[FILE") ? .file : .nothing
  }
}

/// The completion for bash.
enum BashCompletion {
  static func script(for manuals: [CommandHelp]) -> String {
    var text = """
      # Completion of urlcache for bash. Made by 'urlcache generate bash'.
      _urlcache() {
        local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options
        # bash splits --option=value at the equals sign.
        if [[ $current == = ]]; then
          current=
        elif [[ $previous == = ]]; then
          previous=${COMP_WORDS[COMP_CWORD-2]}
        fi
        COMPREPLY=()
        if ((COMP_CWORD == 1)); then
          mapfile -t COMPREPLY < <(compgen -W '\(manuals.map(\.name).joined(separator: " ")) help --help --version' -- "$current")
          return
        fi
        if [[ $command == help ]]; then
          mapfile -t COMPREPLY < <(compgen -W '\(manuals.map(\.name).joined(separator: " "))' -- "$current")
          return
        fi
        case "$command $previous" in

      """
    for manual in manuals {
      for option in manual.options where option.placeholder != nil {
        text += "    '\(manual.name) --\(option.name)') \(reply(Completion(valueOf: option))) return ;;\n"
      }
    }
    text += "  esac\n  case \"$command\" in\n"
    for manual in manuals {
      let options = manual.allOptions.map { "--" + $0.name }.joined(separator: " ")
      text += "    \(manual.name)) options='\(options)' ;;\n"
    }
    text += """
          *) return ;;
        esac
        if [[ $current == -* ]]; then
          mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
          return
        fi
        case "$command" in

      """
    for manual in manuals where Completion(operandsOf: manual) != .nothing {
      text += "    \(manual.name)) \(reply(Completion(operandsOf: manual))) ;;\n"
    }
    return text + "  esac\n}\ncomplete -F _urlcache urlcache\n"
  }

  private static func reply(_ completion: Completion) -> String {
    switch completion {
    case .nothing: ""
    case .file: "compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\");"
    case .directory: "compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$current\");"
    case .words(let words):
      "mapfile -t COMPREPLY < <(compgen -W '\(words.joined(separator: " "))' -- \"$current\");"
    }
  }
}

/// The completion for zsh.
enum ZshCompletion {
  static func script(for manuals: [CommandHelp]) -> String {
    var text = """
      #compdef urlcache
      # Completion of urlcache for zsh. Made by 'urlcache generate zsh'.
      _urlcache() {
        local context state state_descr line
        typeset -A opt_args
        _arguments -C '(- *)--help[Shows the help]' '(- *)--version[Shows the version]' \\
          '1:command:->command' '*::argument:->argument'
        case $state in
          command)
            local -a commands=(

      """
    for manual in manuals { text += "        '\(manual.name):\(escaped(manual.summary))'\n" }
    text += "        'help:Shows the manual of a command.'\n"
    text += "      )\n      _describe command commands ;;\n    argument)\n      case $words[1] in\n"
    for manual in manuals {
      text += "        \(manual.name))\n          _arguments"
      for option in manual.allOptions { text += " \\\n            '\(specification(of: option))'" }
      text += " \\\n            '*:argument:\(action(Completion(operandsOf: manual)))' ;;\n"
    }
    let names = manuals.map(\.name).joined(separator: " ")
    text += "        help) _values command \(names) ;;\n"
    return text + "      esac ;;\n  esac\n}\n_urlcache \"$@\"\n"
  }

  private static func specification(of option: Option) -> String {
    let help = option.help.split(separator: "\n").joined(separator: " ")
    let value = option.placeholder.map { ":\($0):\(action(Completion(valueOf: option)))" } ?? ""
    return (option.isRepeatable ? "*" : "") + "--\(option.name)\(value.isEmpty ? "" : "=")[\(escaped(help))]" + value
  }

  private static func action(_ completion: Completion) -> String {
    switch completion {
    case .nothing: " "
    case .file: "_files"
    case .directory: "_files -/"
    case .words(let words): "(\(words.joined(separator: " ")))"
    }
  }

  /// Escapes a text for a specification in single quotes.
  private static func escaped(_ text: String) -> String {
    var escaped = ""
    for character in text {
      switch character {
      case "'": escaped += "'\\''"
      case "[", "]", ":", "\\": escaped += "\\\(character)"
      default: escaped.append(character)
      }
    }
    return escaped
  }
}
