import Foundation

/// A store of responses to compare with, filled with a fixture and used in its usual way.
protocol Peer: AnyObject {
  static var name: String { get }

  /// Whether a read waits for another process or thread.
  static var waits: Bool { get }

  /// Creates an empty store in a folder.
  init(folder: String, fixture: Fixture) throws

  /// Stores entries in groups of a suitable size.
  func store(_ range: Range<Int>) throws

  /// Looks entries up by URL and copies head and body. Returns the number of bytes of the bodies.
  func read(_ picks: ArraySlice<UInt32>) -> Int

  /// Returns a copy of an entry's body; nil on a miss.
  func body(_ index: Int) -> Data?

  func close()
}

extension Peer {
  static var waits: Bool { false }

  var name: String { Self.name }

  /// Compares the first, the last and 100 random bodies with the fixture; traps on a difference.
  func check(_ fixture: Fixture) {
    var random = SeededGenerator(seed: 7)
    for pick in [0, UInt32(fixture.count - 1)] + random.picks(100, below: fixture.count) {
      guard let body = body(Int(pick)) else { fatalError("\(name) lost entry \(pick) of \(fixture.name)") }
      body.withUnsafeBytes { fixture.check($0, Int(pick), name) }
    }
  }

  func benchmarkCase(_ picks: [[UInt32]], threads: Int = 1, suffix: String = "") -> BenchmarkCase {
    BenchmarkCase(name: name + suffix, operations: picks[0].count, threads: threads, waits: Self.waits) {
      thread, round in
      let mine = picks[(thread + round) % picks.count]
      guard self.read(mine[...]) > 0 else { fatalError("\(self.name) missed") }
    }
  }
}
