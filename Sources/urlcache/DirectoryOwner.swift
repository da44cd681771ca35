import Glibc

/// The option with which root works as the owner of a directory.
///
/// A cache refuses the directory of another user. With this option the tool has the rights of that user and no others,
/// so that the directory cannot lead it to other files, and what it writes belongs to the user.
enum DirectoryOwner {
  static let option = Option(
    name: "as-owner", help: "As root: opens DIR as the user that it belongs to, with that user's rights only.")

  /// Takes the rights of the owner of a directory, for the rest of this process.
  ///
  /// - Throws: `ToolError` if the directory is missing, or this process is not root and not the owner's.
  static func become(ownerOf path: String) throws(ToolError) {
    var status = stat()
    guard lstat(path, &status) == 0 else {
      throw ToolError("\(Format.visible(path)) cannot be examined: \(String(cString: strerror(errno))).")
    }
    guard status.st_uid != geteuid() else { return }
    guard geteuid() == 0 else { throw ToolError("--as-owner needs root, because the directory is another user's.") }
    var hasChanged: Bool
    if let user = getpwuid(status.st_uid)?.pointee {
      hasChanged = initgroups(user.pw_name, user.pw_gid) == 0 && setgid(user.pw_gid) == 0
    } else {
      hasChanged = setgroups(0, nil) == 0 && setgid(status.st_gid) == 0
    }
    hasChanged = hasChanged && setuid(status.st_uid) == 0
    guard hasChanged else { throw ToolError("The user cannot be changed: \(String(cString: strerror(errno))).") }
  }
}
