import Foundation
import ResponseStore
import Synchronization

/// A full disk and many entries: filling, writing to a full disk, purging, opening, a lower capacity, and the tool.
///
/// Compared with SQLite and RocksDB, which delete the oldest entry for each one that they insert.
struct Scale {
  struct Options {
    /// The numbers of entries. Two of them show what grows with the number.
    var counts = [100_000, 1_000_000]
    /// The built `urlcache`; nil omits the measurements of its commands.
    var tool: String?
  }

  let report: Report
  let scratch: Scratch
  let options: Options

  /// The approximate disk usage of a 1 KB response, so that the store is full at about the wanted number of entries.
  private static let entryByteCount = 2600

  func run() throws {
    let counts = report.isQuick ? [20_000] : options.counts
    for count in counts {
      try ScaleStore(
        report: report, scratch: scratch, count: count, capacityByteCount: max(16 << 20, count * Self.entryByteCount),
        tool: options.tool
      ).run()
      try scratch.remove(scratch.path + "/scale")
    }
    // More entries would take hours. The fixture has as many again, which replace the first ones.
    let peerCount = min(counts.max() ?? 0, 1_000_000)
    let fixture = Fixture(count: 2 * peerCount, bodyByteCount: 1 << 10, isScattered: true)
    try peer(SQLitePeer(folder: scratch.folder("scale-sqlite"), fixture: fixture), peerCount) { peer, new, old in
      try peer.storeGroup(new)
      if let old { try peer.remove(where: "BETWEEN \(old.lowerBound) AND \(old.upperBound - 1)") }
    }
    try scratch.remove(scratch.path + "/scale-sqlite")
    try peer(RocksDBPeer(folder: scratch.folder("scale-rocksdb"), fixture: fixture), peerCount) { peer, new, old in
      try peer.storeGroup(new, synced: true)
      if let old { try peer.removeEach(old) }
    }
    try scratch.remove(scratch.path + "/scale-rocksdb")
  }

  /// Fills a peer, then stores as many entries again in groups of 256, each replacing the oldest.
  private func peer<P: Peer>(
    _ peer: P, _ count: Int, replace: (P, _ new: Range<Int>, _ old: Range<Int>?) throws -> Void
  ) throws {
    let scenario = Fixture(count: count, bodyByteCount: 1 << 10).name
    let last = max(count - 1_000_000, 0)
    var lastMillion: UInt64 = 0
    var start = DiskTraffic(of: scratch.path)
    for first in stride(from: 0, to: count, by: 256) {
      if first >= last, lastMillion == 0 { lastMillion = now() }
      try replace(peer, first..<min(first + 256, count), nil)
    }
    let filling = Double(count - last) / Double(now() - lastMillion) * 1e9
    add("stores while filling, last million", scenario, peer.name, "a second", filling, lessIsBetter: false)
    var written = Double((DiskTraffic(of: scratch.path) - start).writtenByteCount) / Double(count)
    add("bytes written while filling", scenario, peer.name, "bytes/store", written)
    start = DiskTraffic(of: scratch.path)
    let began = now()
    for first in stride(from: count, to: 2 * count, by: 256) {
      let new = first..<min(first + 256, 2 * count)
      try replace(peer, new, (new.lowerBound - count)..<(new.upperBound - count))
    }
    let full = Double(count) / Double(now() - began) * 1e9
    add("stores when full", scenario, peer.name, "a second", full, lessIsBetter: false)
    written = Double((DiskTraffic(of: scratch.path) - start).writtenByteCount) / Double(count)
    add("bytes written when full", scenario, peer.name, "bytes/store", written)
    peer.close()
  }

  private func add(
    _ measure: String, _ scenario: String, _ peer: String, _ unit: String, _ value: Double, lessIsBetter: Bool = true
  ) {
    report.add("scale", measure, scenario, peer, unit: unit, [value], lessIsBetter: lessIsBetter)
  }
}

/// A process that stores entries until it is killed: `Bench scale-writer FOLDER CAPACITY FIRST`.
enum ScaleWriter {
  static let command = "scale-writer"

  static func run(_ words: [String]) throws {
    guard words.count == 3, let capacity = Int(words[1]), let first = Int(words[2]) else {
      throw BenchError("\(command) wants a folder, a capacity and a number")
    }
    let store = try StorePeer.open(words[0], capacityByteCount: capacity)
    let fixture = Fixture(count: .max, bodyByteCount: 1 << 10, isScattered: true)
    for index in first... {
      store.store(fixture.response(index))
      if index == first + 5000 { FileHandle.standardOutput.write(Data("storing\n".utf8)) }
    }
  }

  /// Starts a process that stores in a folder, and kills it meanwhile.
  static func leaveKilled(_ folder: String, capacityByteCount: Int, first: Int) throws {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
    process.arguments = [command, folder, String(capacityByteCount), String(first)]
    let output = Pipe()
    process.standardOutput = output
    try process.run()
    guard output.fileHandleForReading.availableData.starts(with: Data("storing".utf8)) else {
      endProcess(process)
      throw BenchError("the process that was to store did not")
    }
    endProcess(process)
  }
}
