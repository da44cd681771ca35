import Glibc
import LMDB

/// Measures insertions into the index, with and without rows, and a rebuild. Uses CPU time without rows.
enum Changes {
  static func index(directory: String, recordCount: Int) {
    let file = IndexFile(path: directory + "/" + IndexLayout.fileName, owner: 1)
    var filler = IndexFiller(file: file)
    var start = processorTime()
    filler.fill(recordCount)
    let filled = processorTime() - start
    let longest = filler.longest
    start = processorTime()
    for _ in 0..<100 { filler.replaceAtRandom(IndexFiller.batchCount) }
    let replaced = (processorTime() - start) / Double(100 * IndexFiller.batchCount)
    print(
      "index \(recordCount): \(Int(Double(recordCount) / filled)) insertions/s from an empty file, longest transaction "
        + "\(Int(longest * 1000)) ms, growth included; \(Int(replaced * 1e9)) ns for an insertion and a removal; "
        + "\((file.current?.byteCount ?? 0) >> 20) MiB")
    start = processorTime()
    var found: [UInt64] = []
    let suspects = file.current?.forEachCheckedEntry { if $0.hostTag == 1 { found.append($0.rowID) } }
    print(
      "pass \(recordCount): \(Int((processorTime() - start) * 1000)) ms, \(found.count) records of a host, "
        + "\(suspects?.count ?? 0) corrupt blocks")
    // With another boot ID the file is invalid and is created again.
    let other = IndexFile(
      path: directory + "/" + IndexLayout.fileName, owner: 1, boot: Boot(high: 1, low: 1))
    start = processorTime()
    precondition(
      other.begin(transactionID: 1, recordCount: recordCount, nextRowID: filler.next), "No space")
    let opened = processorTime() - start
    var longestStep = 0.0
    start = processorTime()
    while let index = other.current {
      let begun = processorTime()
      let (progress, _) = index.rebuild(limit: 2000) { position in
        guard case .rows(let rowID) = position, rowID > filler.oldest else { return nil }
        return (IndexFiller.entry(rowID - 1), .rows(below: rowID - 1))
      } areSameResponse: { _, _ in
        false
      }
      longestStep = max(longestStep, processorTime() - begun)
      if progress != .unfinished { break }
    }
    print(
      "rebuild \(recordCount): created in \(Int(opened * 1000)) ms, \(Int(Double(recordCount) / (processorTime() - start))) "
        + "records/s, longest step of 2,000 \(Int(longestStep * 1e6)) µs")
  }

  /// Measures how fast rows are stored with a table of keys and with the index, and the bytes that the disk writes.
  ///
  /// - Parameter disk: The name of the disk in `/sys/block`.
  static func rows(directory: String, disk: String, recordCount: Int) throws {
    for (name, hasKeys) in [("a table of keys", true), ("the index", false)] {
      let rows = try Rows(
        directory: directory + "/\(hasKeys)", mapByteCount: 64 << 20 + recordCount * 4000)
      let written = writtenByteCount(onDisk: disk)
      let seconds = try rows.fill(
        1..<UInt64(recordCount + 1), withKeys: hasKeys, withIndex: !hasKeys)
      sync()
      let ratio = Double(writtenByteCount(onDisk: disk) - written) / Double(recordCount * Rows.recordByteCount)
      print(
        "rows \(recordCount) with \(name): \(Int(Double(recordCount) / seconds)) stores/s, "
          + "\(Int(ratio * 100)) bytes written for 100 stored")
    }
  }
}
