import Glibc
import LMDB
import ResponseStore
import SystemFiles

/// A claim of another process on the file of a new index; see ``IndexMaintainer``.
struct IndexClaim {
  private let file: LockDescriptor

  /// Claims the file; nil if it is claimed.
  init?(_ fixture: StoreFixture) {
    guard let file = LockDescriptor(fixture.path("users.lock"), O_RDWR | O_CLOEXEC) else { return nil }
    // That of the first generation.
    let byte = (1 << 40) + 1
    guard file.lockBytes(byte..<byte + 1) else { return nil }
    self.file = file
  }

  /// Ends the claim, as the end of its process does.
  func end() { file.close() }
}
