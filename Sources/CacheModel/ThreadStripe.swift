import Glibc

/// Threads spread over stripes of memory, so that those that count or allocate at the same time rarely share one.
package enum ThreadStripe {
  /// Returns the stripe of the calling thread among 2 to the power of `bits` stripes.
  @inlinable @inline(__always)
  package static func number(bits: UInt) -> Int {
    // A thread's handle is an address. Multiplying spreads the bits that differ over the upper bits.
    let thread = UInt(pthread_self()) &* 0x9E37_79B9_7F4A_7C15
    return Int(truncatingIfNeeded: thread &>> (64 &- bits))
  }
}
