import Synchronization

/// What to evict, by what the table knows.
extension UseTable {
  /// A record to evict.
  public struct Victim: Sendable, Equatable {
    /// Its row, in the 36 bits that are kept of it.
    public let rowID: UInt64
    let tag: UInt64
  }

  /// Chooses what to evict, and moves the clock up to its worth; nil if the table is empty.
  ///
  /// The caller takes the victim out with ``remove(_:remembering:)-(Victim,_)``, whether or not the record was still there.
  public func chooseVictim() -> Victim? {
    guard recordCount > 0 else { return nil }
    var pool: [Candidate] = []
    pool.reserveCapacity(Self.sampleCount + Self.candidateCount)
    for tag in candidates.withLock({ $0 }) {
      if let index = find(tag) { pool.append(candidate(at: index, tag)) }
    }
    draw(into: &pool)
    guard !pool.isEmpty else { return nil }
    pool.sort()
    let best = pool[0]
    var kept: [UInt64] = []
    for candidate in pool.dropFirst() where candidate.tag != best.tag && kept.last != candidate.tag {
      kept.append(candidate.tag)
      if kept.count == Self.candidateCount { break }
    }
    candidates.withLock { $0 = kept }
    if best.worth > clock { clock = best.worth }
    return Victim(rowID: best.rowID, tag: best.tag)
  }

  /// Takes a victim out; with `remembering` its uses are kept for its return.
  public func remove(_ victim: Victim, remembering: Bool) {
    remove(tag: victim.tag, remembering: remembering)
  }

  /// Chooses records that take about this share of all bytes: those below a worth that a sample of all of them gives, to
  /// which the clock moves up. In the order of their rows, so that neighbours go together. Costs a walk over the table; for
  /// a few records ``chooseVictim()`` is cheaper and more exact.
  ///
  /// The caller takes the victims out, as with ``chooseVictim()``.
  func chooseVictims(share: Double) -> [Victim] {
    var sample: [(worth: Double, byteCount: Double)] = []
    var looks = 0
    while sample.count < Self.thresholdSampleCount, looks < 64 * Self.thresholdSampleCount {
      let index = random.withLock { Int(truncatingIfNeeded: $0.next()) } & (slotCount - 1)
      looks += 1
      let word = slot(index)[0].load(ordering: .acquiring)
      if word != 0 { sample.append((candidate(at: index, word >> 20).worth, Facts(word: word).byteCount)) }
    }
    guard !sample.isEmpty else { return [] }
    sample.sort { $0.worth < $1.worth }
    var wanted = share * sample.reduce(0) { $0 + $1.byteCount }
    var threshold = sample[0].worth
    for item in sample {
      wanted -= item.byteCount
      if wanted < 0 { break }
      threshold = item.worth
    }
    var victims: [Victim] = []
    for index in 0..<slotCount {
      let word = slot(index)[0].load(ordering: .acquiring)
      guard word != 0 else { continue }
      let candidate = candidate(at: index, word >> 20)
      if candidate.worth <= threshold { victims.append(Victim(rowID: candidate.rowID, tag: candidate.tag)) }
    }
    victims.sort { $0.rowID < $1.rowID }
    if threshold > clock { clock = threshold }
    return victims
  }

  private static let thresholdSampleCount = 4096

  /// What may go: the least worth first, of equals the older one.
  private struct Candidate: Comparable {
    var tag: UInt64
    var rowID: UInt64
    var worth: Double

    static func < (left: Candidate, right: Candidate) -> Bool {
      left.worth == right.worth ? left.rowID < right.rowID : left.worth < right.worth
    }
  }

  private func candidate(at index: Int, _ tag: UInt64) -> Candidate {
    let slot = slot(index)
    let place = Place(word: slot[1].load(ordering: .relaxed))
    let worth = Facts(word: slot[0].load(ordering: .relaxed)).worth(base: place.base)
    return Candidate(tag: tag, rowID: place.rowID, worth: worth)
  }

  /// Draws records at random: from a random slot on the next that is in use. In a table that is nearly empty, all of them.
  private func draw(into pool: inout [Candidate]) {
    if recordCount <= 2 * Self.sampleCount, slotCount <= Self.smallestSlotCount {
      for index in 0..<slotCount { append(index, to: &pool) }
      return
    }
    let mask = slotCount - 1
    let target = pool.count + Self.sampleCount
    var looks = 0
    // However few records there are, a draw ends.
    let mostLooks = 64 * Self.sampleCount
    while pool.count < target, looks < mostLooks {
      let index = random.withLock { Int(truncatingIfNeeded: $0.next()) } & mask
      looks += 1
      append(index, to: &pool)
    }
    if pool.isEmpty {
      // Hardly anything is there: look at all of it.
      for index in 0..<slotCount where pool.count < Self.sampleCount { append(index, to: &pool) }
    }
  }

  private func append(_ index: Int, to pool: inout [Candidate]) {
    let word = slot(index)[0].load(ordering: .acquiring)
    if word != 0 { pool.append(candidate(at: index, word >> 20)) }
  }
}

/// Random numbers for draws (SplitMix64): fast, and the same for the same seed.
struct SampleGenerator: RandomNumberGenerator {
  var state: UInt64

  mutating func next() -> UInt64 {
    state &+= 0x9e37_79b9_7f4a_7c15
    var z = state
    z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
    z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
    return z ^ (z >> 31)
  }
}
