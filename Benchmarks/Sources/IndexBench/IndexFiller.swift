import Glibc

/// Changes an index as a store does, without a database. The digest of a record is computed from its row ID.
struct IndexFiller {
  let file: IndexFile
  private(set) var next: UInt64 = 1
  private(set) var oldest: UInt64 = 1
  private var transactionID: UInt64 = 1
  /// The longest time for the changes of a transaction, growth included, in seconds.
  private(set) var longest = 0.0

  static let batchCount = 2700

  init(file: IndexFile) {
    self.file = file
    begin()
  }

  private mutating func begin() {
    precondition(
      file.begin(transactionID: transactionID, recordCount: Int(next - oldest), nextRowID: next),
      "No space for the index")
  }

  static func digest(_ value: UInt64) -> UInt64 {
    var z = value &+ 0x9e37_79b9_7f4a_7c15
    z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
    z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
    return z ^ (z >> 31)
  }

  static func entry(_ rowID: UInt64) -> IndexEntry {
    IndexEntry(digest: digest(rowID), hostDigest: rowID << 52, rowID: rowID, byteCount: 1400)
  }

  private mutating func transaction(adding count: Int, _ changes: (inout Self) -> Void) {
    let start = processorTime()
    precondition(file.reserve(count), "No space for the index")
    changes(&self)
    transactionID += 1
    begin()
    longest = max(longest, processorTime() - start)
  }

  private mutating func add(_ count: Int) {
    for _ in 0..<count {
      precondition(file.note(.insert(Self.entry(next))), "The journal is full")
      next += 1
    }
  }

  mutating func fill(_ count: Int) {
    var left = count
    while left > 0 {
      let batch = min(left, file.journalCapacity, Self.batchCount)
      transaction(adding: batch) { $0.add(batch) }
      left -= batch
    }
  }

  /// Adds records and evicts as many of the oldest, whose cells are at random places.
  mutating func replaceAtRandom(_ count: Int) {
    transaction(adding: count) { filler in
      filler.add(count)
      for _ in 0..<count {
        precondition(
          filler.file.note(.remove(tag: IndexEntry.tag(of: Self.digest(filler.oldest)), rowID: filler.oldest)),
          "The journal is full")
        filler.oldest += 1
      }
    }
  }

  func use(_ rowID: UInt64) {
    guard let index = file.current else { return }
    var matches = index.matches(of: Self.digest(rowID))
    while let match = matches.next() {
      if match.rowID == rowID { index.recordUse(of: match) }
    }
  }
}

/// The wall-clock time in seconds.
func now() -> Double { seconds(of: CLOCK_MONOTONIC) }

/// The CPU time of this thread in seconds, which is comparable on a busy machine.
func processorTime() -> Double { seconds(of: CLOCK_THREAD_CPUTIME_ID) }

private func seconds(of clock: clockid_t) -> Double {
  var time = timespec()
  clock_gettime(clock, &time)
  return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
}
