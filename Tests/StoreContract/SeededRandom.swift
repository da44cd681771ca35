/// A SplitMix64 generator, which produces the same numbers for the same seed.
package struct SeededRandom: RandomNumberGenerator, Sendable {
  private var state: UInt64

  package init(_ seed: UInt64) { state = seed }

  package mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    return Self.mixed(state)
  }

  package mutating func below(_ bound: Int) -> Int { Int(next() % UInt64(bound)) }

  package mutating func isBelow(_ share: Double) -> Bool { Double(next() >> 11) / Double(1 << 53) < share }

  package static func mixed(_ value: UInt64) -> UInt64 {
    var z = value
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}
