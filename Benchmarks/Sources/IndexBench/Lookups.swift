import CRawLMDB
import Glibc
import LMDB

/// Compares lookups by two searches and by the index with two gets in C on a copy of the same file.
enum Lookups {
  static func run(directory: String, recordCount: Int) throws {
    let mapByteCount = 64 << 20 + recordCount * 3000
    let rows = try Rows(directory: directory + "/rows", mapByteCount: mapByteCount)
    _ = try rows.fill(1..<UInt64(recordCount + 1), withKeys: true, withIndex: true)
    system("cp -r \(directory)/rows \(directory)/copy")
    guard let raw = raw_open(directory + "/copy", mapByteCount) else { fatalError("no copy") }
    var bytes: [UInt8] = []
    var offsets: [UInt32] = [0]
    for rowID in 1...UInt64(recordCount) {
      bytes += Rows.key(rowID)
      offsets.append(UInt32(bytes.count))
    }
    let pickCount = 100_000
    let memory = UnsafeMutableRawPointer.allocate(byteCount: 1 << 16, alignment: 16)
    var times: [[Double]] = [[], [], []]
    try bytes.withUnsafeBytes { (bytes) throws in
      for _ in 0..<9 {
        let picks = (0..<pickCount).map { _ in UInt32.random(in: 0..<UInt32(recordCount)) }
        func key(_ pick: UInt32) -> UnsafeRawBufferPointer {
          UnsafeRawBufferPointer(
            rebasing: bytes[Int(offsets[Int(pick)])..<Int(offsets[Int(pick) + 1])])
        }
        func measure(_ which: Int, _ body: () throws -> Bool) rethrows {
          let start = processorTime()
          guard try body() else { fatalError("a record was not found") }
          times[which].append((processorTime() - start) / Double(pickCount) * 1e9)
        }
        measure(0) {
          offsets.withUnsafeBufferPointer { offsets in
            let keys = raw_keys(
              bytes: bytes.bindMemory(to: UInt8.self).baseAddress!, offsets: offsets.baseAddress!)
            return raw_read(raw, keys, picks, pickCount, raw_copies_reused) > 0
          }
        }
        try measure(1) { try picks.allSatisfy { try rows.lookUpByKeys(key($0), into: memory) } }
        try measure(2) { try picks.allSatisfy { try rows.lookUpByIndex(key($0), into: memory) } }
      }
    }
    let medians = times.map { $0.sorted()[$0.count / 2] }
    func text(_ value: Double) -> String {
      "\(Int(value * 100) / 100).\(String(Int(value * 100) % 100 + 100).dropFirst())"
    }
    print(
      "lookups \(recordCount): C, two gets \(Int(medians[0])) ns; two searches \(Int(medians[1])) ns, "
        + "\(text(medians[0] / medians[1])) of C; index and one search \(Int(medians[2])) ns, "
        + "\(text(medians[0] / medians[2])) of C")
  }
}
