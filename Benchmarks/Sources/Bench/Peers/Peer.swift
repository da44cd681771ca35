import Foundation

/// Something that keeps responses, filled with a fixture and used as its own users would.
protocol Peer: AnyObject {
  static var name: String { get }

  /// Whether a read waits for another process or thread.
  static var waits: Bool { get }

  /// Makes an empty one in a folder.
  init(folder: String, fixture: Fixture) throws

  /// Stores entries, in whatever groups suit it, and makes them durable.
  func store(_ range: Range<Int>) throws

  /// Looks entries up by URL and copies head and body out. Returns the bytes of the bodies.
  func read(_ picks: ArraySlice<UInt32>) -> Int

  /// A copy of an entry's body, to check it.
  func body(_ index: Int) -> Data?

  func close()
}

extension Peer {
  static var waits: Bool { false }

  var name: String { Self.name }

  /// Compares what is stored with the fixture: the first, the last, and a hundred between.
  func check(_ fixture: Fixture) {
    var random = SplitMix64(state: 7)
    for pick in [0, UInt32(fixture.count - 1)] + random.picks(100, below: fixture.count) {
      guard let body = body(Int(pick)) else { fatalError("\(name) lost entry \(pick) of \(fixture.name)") }
      body.withUnsafeBytes { fixture.check($0, Int(pick), name) }
    }
  }

  func contestant(_ picks: [[UInt32]], threads: Int = 1, suffix: String = "") -> Contestant {
    Contestant(name: name + suffix, operations: picks[0].count, threads: threads, waits: Self.waits) { thread, round in
      let mine = picks[(thread + round) % picks.count]
      guard self.read(mine[...]) > 0 else { fatalError("\(self.name) missed") }
    }
  }
}
