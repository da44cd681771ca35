import Foundation
import Glibc

/// The destination of output: standard output, or a file that is replaced at the end.
final class OutputFile {
  private let descriptor: CInt
  private let name: String
  var isStandardOutput: Bool { descriptor == STDOUT_FILENO }
  /// The temporary file and the file that it replaces; nil if the output is written directly.
  private var replacement: (path: String, target: String, hasName: Bool)?
  /// Whether to truncate the file before the first byte.
  private var truncates = false

  /// Opens the output.
  ///
  /// - Parameters:
  ///   - file: A path; nil or `-` for standard output.
  ///   - cache: A cache directory, in which only the cache may write; nil if there is none.
  /// - Throws: `ToolError` if the file cannot be written.
  init(file: String?, outside cache: String? = nil) throws {
    guard let file, file != "-" else {
      descriptor = STDOUT_FILENO
      name = "standard output"
      return
    }
    name = file
    let target = Self.resolved(file) ?? file
    let folder = Self.resolved(Self.folder(of: target)).map { $0 + "/" }
    if let cache = cache.flatMap(Self.resolved), folder?.hasPrefix(cache + "/") == true {
      throw ToolError("\(file) is in the cache directory, in which only the cache may write. Give another file.")
    }
    var information = stat()
    let exists = stat(file, &information) == 0
    // A device or a pipe cannot be replaced.
    if !exists || information.st_mode & S_IFMT == S_IFREG {
      // Replace the target of a symbolic link, not the link.
      let path = "\(target).\(getpid()).partial"
      let mode = exists ? information.st_mode & 0o777 : 0o666
      let unnamed = Self.openUnnamed(nextTo: target, mode: mode)
      let made = unnamed >= 0 ? unnamed : Glibc.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)
      if made >= 0 {
        descriptor = made
        replacement = (path, target, unnamed < 0)
        return
      }
    }
    // The file can be writable although its folder is not.
    descriptor = Glibc.open(file, O_WRONLY | (exists ? 0 : O_CREAT) | O_CLOEXEC, 0o666)
    guard descriptor >= 0 else { throw ToolError("\(file) cannot be written: \(String(cString: strerror(errno))).") }
    truncates = exists && information.st_mode & S_IFMT == S_IFREG
  }

  /// Opens a file without a name in the folder of a file, which vanishes if the process is interrupted or killed.
  ///
  /// - Returns: A negative number if the file system has no such files.
  private static func openUnnamed(nextTo target: String, mode: mode_t) -> CInt {
    let folder = folder(of: target)
    // Such a file gets its name through /proc. The macro O_TMPFILE is not imported.
    guard access("/proc/self/fd", X_OK) == 0 else { return -1 }
    return Glibc.open(folder, 0x40_0000 | O_DIRECTORY | O_WRONLY | O_CLOEXEC, mode)
  }

  private static func folder(of file: String) -> String {
    file.lastIndex(of: "/").map { $0 == file.startIndex ? "/" : String(file[..<$0]) } ?? "."
  }

  /// Returns a path without symbolic links; nil if there is no such file.
  private static func resolved(_ path: String) -> String? {
    guard let text = realpath(path, nil) else { return nil }
    defer { free(text) }
    return String(cString: text)
  }

  /// Writes data at the end of the output.
  func write(_ data: Data) throws {
    if truncates, ftruncate(descriptor, 0) != 0 {
      throw ToolError("\(name) cannot be written: \(String(cString: strerror(errno))).")
    }
    truncates = false
    try Output.write(data, to: descriptor, name: name)
  }

  /// Replaces the file with the output.
  func commit() throws {
    guard let replacement else { return }
    if !replacement.hasName {
      let linked = linkat(
        AT_FDCWD, "/proc/self/fd/\(descriptor)", AT_FDCWD, replacement.path, AT_SYMLINK_FOLLOW)
      guard linked == 0 else { throw ToolError("\(name) cannot be written: \(String(cString: strerror(errno))).") }
      self.replacement?.hasName = true
    }
    guard rename(replacement.path, replacement.target) == 0 else {
      throw ToolError("\(name) cannot be written: \(String(cString: strerror(errno))).")
    }
    self.replacement = nil
  }

  /// Removes output that was not committed.
  func discard() {
    guard let replacement else { return }
    if replacement.hasName { unlink(replacement.path) }
    self.replacement = nil
  }
}
