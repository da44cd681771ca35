import Glibc
import Synchronization

/// The lease of one of several machines: until when it may serve stored responses without validating them.
///
/// The deadline is a word that all processes of the machine have mapped. It is in nanoseconds of `CLOCK_BOOTTIME`,
/// which also counts the time in which a process is suspended or the machine sleeps. A tier can use the lower 16 bits
/// for something else, if it subtracts 66 µs.
///
/// `@unchecked Sendable`: the pointer is constant, the word is atomic, and `memory` keeps it mapped.
package final class MachineLease: @unchecked Sendable {
  private let deadline: UnsafeMutablePointer<Atomic<UInt64>>
  private let memory: any AnyObject & Sendable

  /// - Parameter memory: The owner of the word's memory.
  package init(deadline: UnsafeMutablePointer<Atomic<UInt64>>, in memory: any AnyObject & Sendable) {
    self.deadline = deadline
    self.memory = memory
  }

  /// Whether the lease is valid. Call this before the lookup of a stored response: between a lookup and a later check
  /// a removal may be applied and the lease renewed.
  ///
  /// Costs a load and a reading of the clock.
  package var isValid: Bool {
    // Load the deadline before the time. A renewal in between only makes the result stricter. A revocation in between
    // counts as later than this check.
    let deadline = deadline.pointee.load(ordering: .acquiring)
    return BootClock.now < deadline
  }
}

/// `CLOCK_BOOTTIME`, which no process can set and which goes on while the machine sleeps.
package enum BootClock {
  /// The time since the machine started, in nanoseconds.
  package static var now: UInt64 {
    var time = timespec()
    clock_gettime(CLOCK_BOOTTIME, &time)
    return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
  }
}
