import CDiskFaults
import Foundation
import Glibc
import ResponseStore
import Synchronization

/// Simulates the disk under a data file: its syncs fail on request, and it tracks the state after a power failure.
///
/// Like on Linux, a failed sync loses the pages that were written, because they count as clean afterwards. The next
/// sync succeeds without them.
final class FailingDisk: Sendable {
  private struct State {
    /// The synced content.
    var safe: [UInt8]
    /// The pages written since the last sync.
    var dirtyPages: Set<Int> = []
    var failuresToCome = 0
    var syncCount = 0
    var images: [[UInt8]]?
  }

  private static let disks = Monitor<[UInt: FailingDisk]>([:])
  private static let count = Atomic<Int>(0)

  private let inode: UInt
  private let state: Monitor<State>

  /// Starts to simulate the disk under this file. The present content counts as synced.
  init(path: String) throws {
    var status = stat()
    guard stat(path, &status) == 0 else { throw POSIXError(.ENOENT) }
    inode = UInt(status.st_ino)
    state = Monitor(State(safe: [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))))
    // Other tests install functions of their own.
    Self.install()
    Self.disks.withLock { $0[inode] = self }
    Self.count.add(1, ordering: .sequentiallyConsistent)
  }

  /// Stops simulating the disk.
  func remove() {
    Self.count.subtract(1, ordering: .sequentiallyConsistent)
    Self.disks.withLock { $0[inode] = nil }
  }

  func failNextSyncs(_ count: Int) {
    state.withLock { $0.failuresToCome = count }
  }

  var failuresToCome: Int { state.withLock { $0.failuresToCome } }

  /// The number of syncs since the simulation began.
  var syncCount: Int { state.withLock { $0.syncCount } }

  /// The content after a power failure, if only syncs reached the disk.
  var safeBytes: [UInt8] { state.withLock { $0.safe } }

  /// From now on records, at each sync, the worst content after a power failure: all data pages that were written, and
  /// neither of LMDB's meta pages.
  func keepImages() {
    state.withLock { $0.images = [] }
  }

  var images: [[UInt8]] { state.withLock { $0.images ?? [] } }

  // MARK: Called by the replaced functions

  fileprivate static func disk(_ descriptor: CInt) -> FailingDisk? {
    guard count.load(ordering: .sequentiallyConsistent) > 0 else { return nil }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    return disks.withLock { $0[UInt(status.st_ino)] }
  }

  fileprivate func write(at offset: off_t, _ body: () -> Int) -> Int {
    state.withLock { state in
      let written = body()
      guard written > 0 else { return written }
      state.dirtyPages.formUnion(Int(offset) / Self.pageByteCount...(Int(offset) + written - 1) / Self.pageByteCount)
      return written
    }
  }

  fileprivate func sync(_ descriptor: CInt) -> CInt {
    state.withLock { state in
      state.syncCount += 1
      if state.images != nil {
        var image = state.safe
        for page in state.dirtyPages where page > 1 { Self.write(page, of: descriptor, to: &image) }
        state.images?.append(image)
      }
      if state.failuresToCome > 0 {
        state.failuresToCome -= 1
        state.dirtyPages = []
        errno = EIO
        return -1
      }
      let code = disk_faults_real_sync(descriptor)
      guard code == 0 else { return code }
      for page in state.dirtyPages { Self.write(page, of: descriptor, to: &state.safe) }
      state.dirtyPages = []
      return 0
    }
  }

  private static let pageByteCount = Int(getpagesize())

  /// Copies a page of the file into an image.
  private static func write(_ page: Int, of descriptor: CInt, to image: inout [UInt8]) {
    var bytes = [UInt8](repeating: 0, count: pageByteCount)
    _ = pread(descriptor, &bytes, bytes.count, off_t(page * pageByteCount))
    let end = (page + 1) * pageByteCount
    if image.count < end { image += [UInt8](repeating: 0, count: end - image.count) }
    image.replaceSubrange(end - pageByteCount..<end, with: bytes)
  }
}

extension FailingDisk {
  /// Installs the replaced system calls.
  fileprivate static func install() {
    disk_faults_install(
      { descriptor in
        guard let disk = FailingDisk.disk(descriptor) else { return disk_faults_real_sync(descriptor) }
        return disk.sync(descriptor)
      },
      { descriptor, bytes, count, offset in
        guard let disk = FailingDisk.disk(descriptor) else {
          return disk_faults_real_write(descriptor, bytes, count, offset)
        }
        return disk.write(at: offset) { disk_faults_real_write(descriptor, bytes, count, offset) }
      },
      { descriptor, pieces, count in
        guard let disk = FailingDisk.disk(descriptor) else {
          return disk_faults_real_write_vector(descriptor, pieces, count)
        }
        return disk.write(at: lseek(descriptor, 0, SEEK_CUR)) {
          disk_faults_real_write_vector(descriptor, pieces, count)
        }
      })
  }
}
