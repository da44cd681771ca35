import Synchronization

/// Chooses the records to evict, one by one, from the uses in the index.
///
/// The policy is GDSF with squared use counts and ghost entries. The priority of a record is the inflation at its last
/// use plus its squared use count divided by its bytes. The inflation rises to the priority of each victim, so that
/// unused records age. The victim has the lowest priority of a sample: 32 random records and the 16 best candidates of
/// earlier samples. A choice costs the same at any number of records.
///
/// The caller holds the write lock of the database and evicts the chosen records.
final class VictimSampler: Sendable {
  private struct State {
    var candidates: [IndexEntry] = []
    var random: SeededGenerator
  }

  /// A possible victim. The lowest priority comes first, of equal ones the older record.
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

  /// - Parameter seed: The seed of the samples, so that a run can be repeated.
  init(seed: UInt64 = SystemRandomNumberGenerator.seed()) {
    state = Mutex(State(random: SeededGenerator(seed: seed)))
  }

  /// Chooses a record and raises the inflation to its priority; returns nil if the index is empty.
  ///
  /// - Parameter isExcluded: Returns whether the same transaction chose a record before, which is still in the index.
  func choose(from index: RecordIndex, isExcluded: (IndexEntry) -> Bool = { _ in false }) -> IndexEntry? {
    guard index.recordCount > 0 else { return nil }
    return state.withLock { state in
      var pool: [Candidate] = []
      pool.reserveCapacity(Self.sampleCount + Self.candidateCount)
      func add(_ entry: IndexEntry) { if !isExcluded(entry) { pool.append(Candidate(entry)) } }
      // Read the candidates again, as their uses may have changed.
      for candidate in state.candidates {
        if let cell = index.cell(of: candidate.tag, rowID: candidate.rowID) { add(index.entry(in: cell)) }
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

  /// Chooses the records with the lowest priorities that have about this share of all bytes.
  ///
  /// Takes the limit of the priority from a sample and raises the inflation to it. Scans the whole index. Returns the
  /// records in the order of their rows, so that neighbors are deleted together.
  func choose(share: Double, from index: RecordIndex) -> [IndexEntry] {
    var sample: [Candidate] = []
    state.withLock { state in
      for _ in 0..<(64 * Self.thresholdSampleCount) where sample.count < Self.thresholdSampleCount {
        let cell = Int.random(in: 0..<index.allCellCount, using: &state.random)
        if index.tagWord(cell) != 0 { sample.append(Candidate(index.entry(in: cell))) }
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
    index.forEachEntry(in: 0..<index.allCellCount) { if $0.priority <= threshold { victims.append($0) } }
    victims.sort { $0.rowID < $1.rowID }
    if threshold > index.inflation { index.inflation = threshold }
    return victims
  }

  /// Draws records at random. Draws all records of a nearly empty index.
  private func draw(
    from index: RecordIndex, random: inout SeededGenerator, count: Int, _ add: (IndexEntry) -> Void
  ) {
    var found = 0
    if index.recordCount > 2 * Self.sampleCount {
      // Limit the attempts, as few cells may have records.
      for _ in 0..<(64 * Self.sampleCount) where found < Self.sampleCount {
        let cell = Int.random(in: 0..<index.allCellCount, using: &random)
        guard index.tagWord(cell) != 0 else { continue }
        add(index.entry(in: cell))
        found += 1
      }
    }
    guard found == 0 else { return }
    index.forEachEntry(in: 0..<index.allCellCount) { entry in
      if found < 4 * Self.sampleCount {
        add(entry)
        found += 1
      }
    }
  }
}

extension IndexEntry {
  /// The GDSF priority; the lowest is evicted.
  var priority: Double { inflation + Double(useCount * useCount) / byteCount }
}

extension SystemRandomNumberGenerator {
  fileprivate static func seed() -> UInt64 {
    var generator = SystemRandomNumberGenerator()
    return generator.next()
  }
}
