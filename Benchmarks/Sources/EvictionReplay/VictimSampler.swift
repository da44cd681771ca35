import Synchronization

/// Chooses which records to evict, by what the index knows of their use.
///
/// The policy is GDSF with squared use counts and ghosts: a record's priority is the inflation at its last use plus its
/// squared use count divided by its bytes. The inflation rises to the priority of each victim, so that records which are no
/// longer used age. The lowest of a sample is evicted: 32 records drawn at random, and the best 16 of earlier draws. One
/// choice costs the same at any number of records.
///
/// The caller holds the database's write lock, and evicts what is chosen.
final class VictimSampler: Sendable {
  private struct State {
    var candidates: [IndexEntry] = []
    var random: SampleGenerator
  }

  /// A record that may go: the lowest priority first, of equals the older one.
  private struct Candidate: Comparable {
    var entry: IndexEntry
    var priority: Double

    init(_ entry: IndexEntry) {
      self.entry = entry
      priority = entry.priority
    }

    static func < (left: Candidate, right: Candidate) -> Bool {
      left.priority == right.priority ? left.entry.rowID < right.entry.rowID : left.priority < right.priority
    }
  }

  private static let sampleCount = 32
  private static let candidateCount = 16
  private static let thresholdSampleCount = 4096

  private let state: Mutex<State>

  /// - Parameter seed: Of the draws, so that a run can be repeated.
  init(seed: UInt64 = SystemRandomNumberGenerator.seed()) {
    state = Mutex(State(random: SampleGenerator(state: seed)))
  }

  /// Chooses a record, and raises the inflation to its priority; nil if the index is empty.
  ///
  /// - Parameter isExcluded: Whether a record was chosen before in the same transaction, so that it is still in the index.
  func choose(from index: RecordIndex, isExcluded: (IndexEntry) -> Bool = { _ in false }) -> IndexEntry? {
    guard index.recordCount > 0 else { return nil }
    return state.withLock { state in
      var pool: [Candidate] = []
      pool.reserveCapacity(Self.sampleCount + Self.candidateCount)
      func add(_ entry: IndexEntry) { if !isExcluded(entry) { pool.append(Candidate(entry)) } }
      // Their uses may have changed since.
      for candidate in state.candidates {
        if let slot = index.slot(of: candidate.tag, rowID: candidate.rowID) { add(index.entry(in: slot)) }
      }
      draw(from: index, random: &state.random, count: pool.count, add)
      guard !pool.isEmpty else { return nil }
      pool.sort()
      let victim = pool[0].entry
      var kept: [IndexEntry] = []
      for candidate in pool.dropFirst()
      where candidate.entry.rowID != victim.rowID && kept.last?.rowID != candidate.entry.rowID {
        kept.append(candidate.entry)
        if kept.count == Self.candidateCount { break }
      }
      state.candidates = kept
      if pool[0].priority > index.inflation { index.inflation = pool[0].priority }
      return victim
    }
  }

  /// Chooses records that take about this share of all bytes: those up to a priority that a sample of all of them gives, to
  /// which the inflation rises. In the order of their rows, so that neighbors go together. Costs a pass over the index.
  func choose(share: Double, from index: RecordIndex) -> [IndexEntry] {
    var sample: [Candidate] = []
    state.withLock { state in
      for _ in 0..<(64 * Self.thresholdSampleCount) where sample.count < Self.thresholdSampleCount {
        let slot = Int.random(in: 0..<index.allSlotCount, using: &state.random)
        if index.facts(slot) != 0 { sample.append(Candidate(index.entry(in: slot))) }
      }
    }
    guard !sample.isEmpty else { return [] }
    sample.sort()
    var wanted = share * sample.reduce(0) { $0 + $1.entry.byteCount }
    var threshold = sample[0].priority
    for candidate in sample {
      wanted -= candidate.entry.byteCount
      if wanted < 0 { break }
      threshold = candidate.priority
    }
    var victims: [IndexEntry] = []
    index.forEachEntry(in: 0..<index.allSlotCount) { if $0.priority <= threshold { victims.append($0) } }
    victims.sort { $0.rowID < $1.rowID }
    if threshold > index.inflation { index.inflation = threshold }
    return victims
  }

  /// Draws records at random. From an index that is nearly empty, all of them.
  private func draw(
    from index: RecordIndex, random: inout SampleGenerator, count: Int, _ add: (IndexEntry) -> Void
  ) {
    var found = 0
    if index.recordCount > 2 * Self.sampleCount {
      // However few records there are, a draw ends.
      for _ in 0..<(64 * Self.sampleCount) where found < Self.sampleCount {
        let slot = Int.random(in: 0..<index.allSlotCount, using: &random)
        guard index.facts(slot) != 0 else { continue }
        add(index.entry(in: slot))
        found += 1
      }
    }
    guard found == 0 else { return }
    index.forEachEntry(in: 0..<index.allSlotCount) { entry in
      if found < 4 * Self.sampleCount {
        add(entry)
        found += 1
      }
    }
  }
}

extension IndexEntry {
  /// The lowest is evicted.
  var priority: Double { inflation + Double(useCount * useCount) / byteCount }
}

extension SystemRandomNumberGenerator {
  fileprivate static func seed() -> UInt64 {
    var generator = SystemRandomNumberGenerator()
    return generator.next()
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
