import Foundation
import Glibc

/// A small file system of a kind, in a file or in memory, which only tests that run as root can mount.
struct TestFileSystem: Codable, Sendable {
  enum Kind: String, CaseIterable, Codable, Sendable {
    case ext4, xfs, btrfs, tmpfs

    /// Whether this process can make and mount one. On Btrfs, mapped files need Linux 6.17.
    var isUsable: Bool { Self.usable.contains(self) }

    private static let usable = Set(
      allCases.filter { $0 != .btrfs || hasLinux(6, 17) }.filter { kind in
        guard let fileSystem = TestFileSystem(kind) else { return false }
        fileSystem.remove()
        return true
      })

    private static func hasLinux(_ major: Int, _ minor: Int) -> Bool {
      let version = ProcessInfo.processInfo.operatingSystemVersion
      return (version.majorVersion, version.minorVersion) >= (major, minor)
    }

    /// The smallest size that the kind permits, or little more.
    fileprivate var byteCount: Int {
      switch self {
      case .ext4: 32 << 20
      case .xfs: 320 << 20
      case .btrfs: 160 << 20
      case .tmpfs: 24 << 20
      }
    }
  }

  let kind: Kind
  /// The directory at which it is mounted.
  let path: String

  private var imagePath: String { path + ".image" }

  /// Returns nil if the machine lacks the kind or the program that makes it, or does not permit mounting.
  init?(_ kind: Kind) {
    self.kind = kind
    path = FileManager.default.temporaryDirectory.appendingPathComponent("\(kind)-\(UUID().uuidString)").path
    guard mkdir(path, 0o700) == 0 else { return nil }
    let isMounted =
      kind == .tmpfs ? mount("tmpfs", path, "tmpfs", 0, "size=\(kind.byteCount)") == 0 : makeImage() && mountImage()
    guard isMounted else {
      remove()
      return nil
    }
  }

  private func makeImage() -> Bool {
    let descriptor = creat(imagePath, 0o600)
    defer { close(descriptor) }
    return ftruncate(descriptor, off_t(kind.byteCount)) == 0 && run("mkfs.\(kind)", ["-q", imagePath])
  }

  private func mountImage() -> Bool { run("mount", ["-t", kind.rawValue, "-o", "loop", imagePath, path]) }

  func remove() {
    umount2(path, 2)
    rmdir(path)
    unlink(imagePath)
  }

  /// Copies a directory as users do. Where the file system permits it, the copies share blocks with the originals.
  func copy(_ directory: String, to copy: String) -> Bool {
    // Btrfs does not share blocks of a file without copy on write with a copy that has it.
    guard kind == .btrfs else { return run("cp", ["-a", "--reflink=auto", directory, copy]) }
    return run("btrfs", ["subvolume", "snapshot", directory, copy])
  }

  /// Creates a directory that ``copy(_:to:)`` can copy.
  func makeDirectory(_ directory: String) -> Bool {
    kind == .btrfs ? run("btrfs", ["subvolume", "create", directory]) : mkdir(directory, 0o700) == 0
  }

  /// Takes all free space.
  func fill() {
    let descriptor = open(path + "/filler", O_WRONLY | O_CREAT | O_APPEND, 0o600)
    defer { close(descriptor) }
    var (position, byteCount) = (off_t(0), off_t(1) << 28)
    while byteCount >= 4096 {
      if posix_fallocate(descriptor, position, byteCount) == 0 { position += byteCount } else { byteCount /= 2 }
    }
    let block = [UInt8](repeating: 1, count: 4096)
    while write(descriptor, block, block.count) == block.count {}
    synchronize()
  }

  /// Writes all files to their blocks. The next write to each mapped page then asks the file system again.
  func synchronize() { _ = run("sync", ["-f", path]) }

  func freeSpace() {
    unlink(path + "/filler")
    synchronize()
  }

  private func run(_ program: String, _ arguments: [String]) -> Bool {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
    process.arguments = [program] + arguments
    process.environment = ["PATH": "/usr/sbin:/usr/bin:/sbin:/bin"]
    process.standardOutput = FileHandle.nullDevice
    process.standardError = FileHandle.nullDevice
    do {
      try process.run()
    } catch {
      return false
    }
    process.waitUntilExit()
    return process.terminationStatus == 0
  }
}
