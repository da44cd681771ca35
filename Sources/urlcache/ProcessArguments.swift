import Foundation
import Glibc

/// The arguments of this process.
///
/// An argument that is not UTF-8 can be the path of an existing directory. The directory is opened, and the argument is
/// replaced by a path of the open directory, which has ASCII characters only.
struct ProcessArguments: Sendable {
  /// The arguments after the name of the program.
  private(set) var texts: [String] = []
  /// The directories whose paths are not UTF-8.
  private var directories: [Directory] = []

  private struct Directory: Sendable {
    /// The path that replaces the argument.
    let path: String
    let bytes: [UInt8]

    /// The argument for people and for JSON: without control characters, quotation marks and backslashes.
    var name: String {
      let text = Format.visible(String(decoding: bytes, as: UTF8.self))
      return String(text.map { "\"\\".contains($0) ? "?" : $0 })
    }
  }

  /// The arguments, or the reason why they cannot be used.
  private static let result = Result { () throws(ToolError) in try ProcessArguments() }

  /// - Throws: `ToolError` if one is neither UTF-8 nor the path of a directory.
  static func read() throws(ToolError) -> [String] { try result.get().texts }

  private init() throws(ToolError) {
    for argument in Self.pointers().dropFirst() {
      if let text = String(validatingCString: argument) {
        texts.append(text)
      } else {
        texts.append(try replacement(for: argument))
      }
    }
  }

  /// Returns an argument for one that is not UTF-8: a directory, or an option with a directory as its value.
  private mutating func replacement(for argument: UnsafePointer<CChar>) throws(ToolError) -> String {
    let option = "--\(CacheAccess.directory.name)="
    let start = strncmp(argument, option, option.utf8.count) == 0 ? option.utf8.count : 0
    let descriptor = open(argument + start, Self.pathOnly | O_DIRECTORY | O_CLOEXEC)
    guard descriptor >= 0 else {
      throw ToolError(
        "The argument '\(Format.visible(String(cString: argument)))' is neither UTF-8 nor the path of a directory.")
    }
    // With the dot, it is the path of a directory and not of a symbolic link.
    let bytes = UnsafeBufferPointer(start: argument + start, count: strlen(argument + start))
    let directory = Directory(
      path: "/proc/self/fd/\(descriptor)/.", bytes: bytes.map { UInt8(bitPattern: $0) })
    directories.append(directory)
    return (start > 0 ? option : "") + directory.path
  }

  /// `O_PATH`, which is not imported.
  private static let pathOnly: CInt = 0x20_0000

  // MARK: Names

  /// Returns a text with the given names of directories in place of the paths that replace them.
  static func withGivenNames(_ text: String) -> String {
    guard case .success(let arguments) = result, !arguments.directories.isEmpty else { return text }
    return arguments.directories.reduce(text) { $0.replacingOccurrences(of: $1.path, with: $1.name) }
  }

  /// Returns a text that identifies a directory in each run of the tool with the same argument.
  static func identity(ofDirectory path: String) -> String {
    guard case .success(let arguments) = result,
      let directory = arguments.directories.first(where: { $0.path == path })
    else { return path }
    return String(String.UnicodeScalarView(directory.bytes.map { Unicode.Scalar($0) }))
  }

  // MARK: The system's arguments

  /// Returns the arguments with the name of the program.
  private static func pointers() -> [UnsafePointer<CChar>] {
    (0..<Int(CommandLine.argc)).compactMap { CommandLine.unsafeArgv[$0].map { UnsafePointer($0) } }
  }
}
