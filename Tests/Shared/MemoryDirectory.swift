import Foundation

/// Returns a path for a new directory in memory, where syncs cost nothing.
///
/// The path is in the temporary folder if `/dev/shm` has less than twice `byteCount` of free space.
func memoryDirectory(for byteCount: Int) -> String {
  let parent = hasSpaceInMemory(byteCount) ? "/dev/shm" : NSTemporaryDirectory()
  return parent + "/store-\(UUID().uuidString)"
}

private func hasSpaceInMemory(_ byteCount: Int) -> Bool {
  var status = statvfs()
  guard access("/dev/shm", W_OK) == 0, statvfs("/dev/shm", &status) == 0 else { return false }
  return Int(status.f_bavail) * Int(status.f_frsize) > 2 * byteCount
}
