import Glibc

/// The words at the beginning of the fleet file, in the machine's byte order.
///
/// A fleet tier writes them; ``FleetMachineState`` reads those that tell the state of the machine.
package enum FleetFileLayout {
  /// The file with the state of the fleet that a directory belongs to.
  package static let fileName = "LMDBURLCache.fleet"

  /// `MLRCFLT4` on a little-endian machine. The last character is the version of the file.
  package static let magic: UInt64 = 0x3454_4C46_4352_4C4D
  package static let headerByteCount = 4096

  /// The positions of the words in bytes. Those that change in use are in different cache lines.
  package enum Offset {
    package static let magic = 0
    package static let owner = 8
    package static let node = 16
    package static let boot = 32
    package static let fleet = 80
    package static let inode = 96
    package static let device = 104
    package static let position = 128
    package static let deadline = 192
    package static let ringFloor = 256
    package static let announced = 320
    package static let followed = 384
    package static let followerProcess = 392
    package static let revoked = 400
    package static let begunEpochs = 448
    package static let epochs = 512
    package static let failure = 1536
  }

  package static let bootByteCount = 40
  /// The last failure is a byte count in a word, and a text.
  package static let maximumFailureByteCount = 504

  /// The part of the word at ``Offset/deadline`` that tells which process follows; the rest is the time.
  ///
  /// Both are in one word, so that a process that no longer follows cannot extend the lease.
  package static let generationMask: UInt64 = 0xFFFF
}
