import FoundationEssentials
import ResponseStore

/// Arguments that a program cannot mean, with the text that says what to write instead.
package enum ArgumentChecks {
  /// Returns the path of a directory.
  ///
  /// - Throws: `StoreError.Code.invalidArgument` for a URL that is not that of a file.
  package static func path(of directory: URL) throws(StoreError) -> String {
    // A URL without a scheme, as of `URL(string: "/var/cache/example")`, is a path.
    guard let scheme = directory.scheme, !directory.isFileURL else { return directory.path }
    throw .invalidArgument(
      "its URL has the scheme \(scheme), but a store is a directory of this machine",
      directory: "\(directory.host ?? "")\(directory.path)",
      remedy: "Pass a file URL, such as URL(fileURLWithPath: \"/var/cache/example\")")
  }

  /// Checks the disk capacity of a cache.
  ///
  /// - Throws: `StoreError.Code.invalidArgument` for a capacity that is too small for a disk tier.
  package static func check(diskCapacity: Int, directory: String) throws(StoreError) {
    guard isTooSmall(diskCapacity) else { return }
    throw .invalidArgument(
      "its disk capacity of \(diskCapacity) bytes is below the minimum of \(ResponseStore.minimumCapacityByteCount)",
      directory: directory, remedy: remedy(forDiskCapacity: diskCapacity))
  }

  /// Whether a capacity is neither that of a disk tier nor 0, which means none.
  private static func isTooSmall(_ diskCapacity: Int) -> Bool {
    1..<ResponseStore.minimumCapacityByteCount ~= diskCapacity
  }

  /// Returns the line to log on a disk capacity that is too small; nil for others.
  package static func issue(withDiskCapacity capacity: Int) -> String? {
    guard isTooSmall(capacity) else { return nil }
    return "LMDBURLCache: Disk caching is off: the disk capacity of \(capacity) bytes is below the minimum of "
      + "\(ResponseStore.minimumCapacityByteCount). \(remedy(forDiskCapacity: capacity))"
  }

  /// Returns the line to log on a memory capacity that no response fits; nil for others.
  package static func issue(withMemoryCapacity capacity: Int) -> String? {
    guard 1..<4096 ~= capacity else { return nil }
    return "LMDBURLCache: No response fits the memory capacity of \(capacity) bytes. Capacities are in bytes: write "
      + "\(capacity) << 20 for \(capacity) MiB, or 0 for no memory tier"
  }

  /// Returns what to write instead of a capacity that is too small.
  private static func remedy(forDiskCapacity capacity: Int) -> String {
    // Most often, the program means megabytes.
    let megabytes = capacity < 1 << 16 ? capacity : 512
    return "Capacities are in bytes: write \(megabytes) << 20 for \(megabytes) MiB, or 0 for no disk tier"
  }
}
