import CacheModel
import Glibc
import SystemFiles

/// The state of a machine in its fleet at one moment, as the fleet file in the directory of its cache tells.
///
/// Reading it needs no connection to Redis, creates nothing, and does not wait.
package struct FleetMachineState: Sendable, Hashable {
  /// The remaining time of the lease in seconds; nil if the machine is cut off.
  package let leaseSecondsLeft: Double?
  /// For how long the machine has been cut off, in seconds; nil if it has a lease, or if that is not known because it
  /// has had none since it was started or joined.
  package let secondsCutOff: Double?
  /// Why the last attempt to follow the fleet failed; nil if it succeeded. It can precede the end of the lease.
  package let failure: String?
  /// The process that follows the fleet for the machine, or did so last; nil if there was none.
  package let followerProcessID: Int32?
  /// The time in seconds since that process last reported that it does; nil if it is not known. A few seconds, unless
  /// the process has ended, or is suspended.
  package let secondsSinceFollowed: Double?

  /// Whether the machine may serve stored responses without a validation.
  package var hasLease: Bool { leaseSecondsLeft != nil }

  /// For how long the machine has been cut off, in milliseconds; 0 if it has a lease, or if that is not known.
  var cutOffMilliseconds: Int { Int((secondsCutOff ?? 0) * 1000) }

  /// Whether a directory belongs to a fleet of machines. A purge of the directory does not reach the others.
  package static func isInFleet(directory: String) -> Bool {
    access(directory + "/" + FleetFileLayout.fileName, F_OK) == 0
  }

  /// Reads the state of the machine that uses a cache's directory.
  ///
  /// - Returns: nil if the directory belongs to no fleet, or its fleet file is of another version or cannot be read.
  package static func read(directory: String) -> FleetMachineState? {
    // A FIFO of this name must not make the caller wait.
    let descriptor = FileDescriptor.open(
      directory + "/" + FleetFileLayout.fileName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var bytes = [UInt8](repeating: 0, count: FleetFileLayout.headerByteCount)
    guard pread(descriptor, &bytes, bytes.count, 0) == bytes.count else { return nil }
    return bytes.withUnsafeBytes { FleetMachineState(header: $0, now: BootClock.now, boot: currentBoot()) }
  }

  /// Reads the state in the first page of a fleet file; nil if it is of another version.
  init?(header: UnsafeRawBufferPointer, now: UInt64, boot: [UInt8]?) {
    typealias Offset = FleetFileLayout.Offset
    func word(_ offset: Int) -> UInt64 { header.loadUnaligned(fromByteOffset: offset, as: UInt64.self) }
    guard word(Offset.magic) == FleetFileLayout.magic else { return nil }
    // Times of another boot say nothing.
    let stored = Array(header[Offset.boot..<Offset.boot + FleetFileLayout.bootByteCount])
    let isPresentBoot = boot == stored
    let deadline = isPresentBoot ? word(Offset.deadline) & ~FleetFileLayout.generationMask : 0
    let end = deadline > 0 ? deadline : isPresentBoot ? word(Offset.revoked) : 0
    let followed = isPresentBoot ? word(Offset.followed) : 0
    func seconds(_ from: UInt64, _ to: UInt64) -> Double { from < to ? Double(to - from) / 1e9 : 0 }
    leaseSecondsLeft = deadline > now ? seconds(now, deadline) : nil
    secondsCutOff = deadline > now || end == 0 ? nil : seconds(end, now)
    secondsSinceFollowed = followed == 0 ? nil : seconds(followed, now)
    let process = Int32(truncatingIfNeeded: word(Offset.followerProcess))
    followerProcessID = isPresentBoot && process > 0 ? process : nil
    let count = word(Offset.failure)
    if isPresentBoot, count > 0, count <= UInt64(FleetFileLayout.maximumFailureByteCount) {
      let start = Offset.failure + 8
      failure = String(decoding: header[start..<start + Int(count)], as: UTF8.self)
    } else {
      failure = nil
    }
  }

  /// The ID of the present boot, as in the fleet file; nil if the system does not tell it.
  private static func currentBoot() -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: FleetFileLayout.bootByteCount)
    let descriptor = FileDescriptor.open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    return Glibc.read(descriptor, &bytes, 36) == 36 ? bytes : nil
  }
}
