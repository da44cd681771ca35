import Glibc

/// The words at the beginning of the fleet file, in the machine's byte order.
///
/// A fleet tier writes them; ``FleetMachineState`` reads those that tell the state of the machine. Words have 64 bits,
/// and those from 128 to 448 are read and written atomically. A process with another version of the file is refused
/// while the directory is in use; otherwise the file is created again.
package enum FleetFileLayout {
  /// The file with the state of the fleet that a directory belongs to.
  package static let fileName = "LMDBURLCache.fleet"

  /// `MLRCFLT4` on a little-endian machine. The last character is the version of the file.
  package static let magic: UInt64 = 0x3454_4C46_4352_4C4D
  package static let headerByteCount = 4096

  /// The positions of the words in bytes. Those that change in use are in different cache lines.
  package enum Offset {
    package static let magic = 0
    /// The checksum of the store's secret for which the position counts, or 0.
    package static let owner = 8
    /// 16 bytes: the machine's ID.
    package static let node = 16
    /// The boot ID as a text, at the last open.
    package static let boot = 32
    /// Two words: a digest of the fleet's name, its server (with Sentinel, the name of the primary) and its secret.
    package static let fleet = 80
    /// The inode and the device of this file. If they are others, the directory is a copy, and joins as another
    /// machine. After a restart the device does not count.
    package static let inode = 96
    package static let device = 104
    /// The number of an epoch on this machine in the upper 16 bits, and the number of its last purge whose removal is
    /// durable.
    package static let position = 128
    /// The end of the lease in nanoseconds of `CLOCK_BOOTTIME`, and the generation in ``generationMask``.
    package static let deadline = 192
    /// The ring of purges has no purge up to this number of the epoch.
    package static let ringFloor = 256
    /// Like the position: the last purge whose removal may count in the store.
    package static let announced = 320
    /// When the process that follows last reported that it does, by the boot clock.
    package static let followed = 384
    package static let followerProcess = 392
    /// When the lease was last revoked, by the boot clock.
    package static let revoked = 400
    /// How many epochs this machine has begun.
    package static let begunEpochs = 448
    /// 16 epochs of 64 bytes: the length of the ID in a byte, the ID, and at 56 the number on this machine.
    package static let epochs = 512
    /// The last failure to follow the fleet: the number of its bytes, or 0; the text.
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
