/// The index of a store that evicts record by record, without the store.
struct KnownUses {
  private var index: RecordIndex
  private let sampler = VictimSampler(seed: 1)
  private var transactionID: UInt64 = 0

  init(cellCount: Int) {
    index = RecordIndex(cellCount: cellCount)
  }

  var cellCount: Int { index.cellCount }

  func recordUse(of digest: UInt64) {
    var matches = index.matches(of: digest)
    while let match = matches.next() { index.recordUse(of: match) }
  }

  mutating func insert(_ digest: UInt64, rowID: UInt64, byteCount: Int) {
    if (index.recordCount + 1) * 100 > index.cellCount * IndexLayout.growthPercent {
      let larger = RecordIndex(cellCount: index.cellCount * 2)
      precondition(
        index.copyRecords(ofHomes: 0..<index.cellCount, into: larger) == .done && index.copyHeader(into: larger),
        "A larger index has no cell for a record")
      index = larger
    }
    apply(.insert(IndexEntry(digest: digest, hostDigest: 0, rowID: rowID, byteCount: byteCount)))
  }

  /// Evicts a record and returns it; nil if there is none.
  mutating func evict() -> IndexEntry? {
    guard let victim = sampler.choose(from: index) else { return nil }
    apply(.remove(tag: victim.tag, rowID: victim.rowID, remembering: true))
    return victim
  }

  /// Commits a transaction with one change.
  private mutating func apply(_ change: IndexChange) {
    _ = index.settle(transactionID: transactionID)
    precondition(index.note(change), "The journal is full")
    transactionID += 1
    precondition(index.settle(transactionID: transactionID) == .done, "The index is full")
  }
}
