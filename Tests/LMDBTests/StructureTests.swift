import Foundation
import LMDB
import Testing

@Suite("B-tree structure check")
struct StructureTests {
  /// Checks the whole file in steps of `pageCount` pages and calls `between` after each unfinished step.
  private func walk(
    _ environment: LMDBEnvironment, pageCount: Int, between: () throws -> Void = {}
  ) throws -> DataFile.StructureFinding {
    var position = DataFile.StructurePosition.start
    while true {
      let finding = try environment.findBrokenStructure(from: position, pageCount: pageCount)
      guard case .unfinished(let next) = finding else { return finding }
      position = next
      try between()
    }
  }

  @Test("An intact file passes the check at once, in steps, during changes and along each key's path", arguments: 2...3)
  func sound(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    let fixture = try Fixture(mapByteCount: 8 << 20)
    let other = try fixture.environment.table("other", key: BytesCodec.self, value: BytesCodec.self)
    var keys = Set<UInt64>()
    func change() throws {
      try fixture.environment.write { (transaction) throws(LMDBError) in
        for _ in 0..<40 {
          let key = UInt64.random(in: 0..<3000, using: &random)
          if keys.contains(key), Bool.random(using: &random) {
            _ = try fixture.table.remove(key, in: transaction)
            _ = try other.remove(Array("\(key % 700)".utf8), in: transaction)
            keys.remove(key)
          } else {
            let size = Int.random(in: 0...7, using: &random) == 0 ? 9000 : Int.random(in: 1...300, using: &random)
            _ = try fixture.table.put([UInt8](repeating: 7, count: size), for: key, in: transaction)
            let name = "\(key % 700)"
            _ = try other.put(
              [1, 2, 3], for: Array((name + String(repeating: "x", count: size % 60)).utf8), in: transaction)
            keys.insert(key)
          }
        }
      }
    }
    for round in 0..<40 {
      try change()
      guard round % 10 == 9 else { continue }
      let atOnce = try fixture.environment.findBrokenStructure(maximumPageCount: 1 << 20)
      let inSteps = try walk(fixture.environment, pageCount: 3)
      let whileChanging = try walk(fixture.environment, pageCount: 9, between: change)
      #expect([atOnce, inSteps, whileChanging] == [.sound, .sound, .sound])
    }
    #expect(try fixture.environment.findBrokenStructure(maximumPageCount: 16) == .unfinished(.start))
    try fixture.environment.read { (transaction) throws(LMDBError) in
      for key in stride(from: UInt64(0), to: 3100, by: 7) {
        try BigEndianUInt64Codec.withEncoded(key) { (key) throws(LMDBError) in
          let reason = try fixture.environment.findBrokenPath(to: key, inTable: "table", transaction)
          #expect(reason == nil)
        }
      }
    }
  }

  @Test(
    "A zeroed or replaced page is found by the check in steps and by the check of a key's path",
    arguments: [true, false])
  func broken(isZeroed: Bool) throws {
    let fixture = try Fixture(mapByteCount: 8 << 20)
    try fixture.put(0..<2000, byteCount: 100)
    let path = fixture.directory.dataFile
    let pages = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
    let leaves = stride(from: 2 * 4096, to: pages.count, by: 4096).filter { pages[$0 + 10] == 2 && pages[$0 + 12] > 40 }
    try #require(leaves.count > 10)
    // Overwrite a leaf page in the middle with zeros, or with a copy of another leaf that has this page's number.
    var page = [UInt8](repeating: 0, count: 4096)
    if !isZeroed {
      page = Array(pages[leaves[7]..<(leaves[7] + 4096)])
      page.replaceSubrange(0..<8, with: pages[leaves[4]..<(leaves[4] + 8)])
    }
    let handle = try FileHandle(forUpdating: URL(fileURLWithPath: path))
    try handle.seek(toOffset: UInt64(leaves[4]))
    try handle.write(contentsOf: page)
    try handle.close()
    guard case .broken = try walk(fixture.environment, pageCount: 4) else {
      Issue.record("the check did not find the broken page")
      return
    }
    let foundCount = try fixture.environment.read { (transaction) throws(LMDBError) in
      var count = 0
      for key in stride(from: UInt64(0), to: 2000, by: 5) {
        try BigEndianUInt64Codec.withEncoded(key) { (key) throws(LMDBError) in
          if try fixture.environment.findBrokenPath(to: key, inTable: "table", transaction) != nil { count += 1 }
        }
      }
      return count
    }
    #expect(foundCount > 2 && foundCount < 40)
  }

  @Test("A value with a wrong size is found, although it is within its page", arguments: [-30, -2, 2, 20])
  func wrongSize(difference: Int) throws {
    let fixture = try Fixture(mapByteCount: 8 << 20)
    try fixture.put(0..<2000, byteCount: 100)
    let path = fixture.directory.dataFile
    var pages = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
    let leaf = try #require(
      stride(from: 2 * 4096, to: pages.count, by: 4096).first { pages[$0 + 10] == 2 && pages[$0 + 12] > 40 })
    // The size is in the first four bytes of a node.
    let node = leaf + Int(pages[leaf + 16 + 6]) + Int(pages[leaf + 16 + 7]) << 8
    #expect(pages[node] == 100)
    pages[node] = UInt8(100 + difference)
    let handle = try FileHandle(forUpdating: URL(fileURLWithPath: path))
    try handle.seek(toOffset: UInt64(node))
    try handle.write(contentsOf: [pages[node]])
    try handle.close()
    guard case .broken = try walk(fixture.environment, pageCount: 4) else {
      Issue.record("the check did not find the wrong size")
      return
    }
  }

  @Test("A file that lacks only free pages at its end is extended, and a truncated file is not")
  func shortFile() throws {
    let directory = TemporaryDirectory()
    do {
      let environment = try directory.open()
      let table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
      // Leave free pages in the middle of the file.
      for key in 0..<6 as Range<UInt64> {
        try environment.write { (transaction) throws(LMDBError) in
          try table.put([UInt8](repeating: 1, count: 3000), for: key, in: transaction)
          try table.put([UInt8](repeating: 1, count: 20_000), for: 0, in: transaction)
        }
      }
      try environment.write { (transaction) throws(LMDBError) in
        try table.put([1], for: 1, in: transaction)
        try table.put([UInt8](repeating: 1, count: 400_000), for: 2, in: transaction)
        _ = try table.remove(2, in: transaction)
      }
    }
    guard case .tooShort = DataFile.inspect(path: directory.dataFile, mapByteCount: 1 << 20) else {
      Issue.record("liblmdb has written free pages")
      return
    }
    let data = try Data(contentsOf: URL(fileURLWithPath: directory.dataFile))
    #expect(truncate(directory.dataFile, 6 * 4096) == 0)
    #expect(!DataFile.extendFileToLastPage(path: directory.dataFile, maximumPageCount: 100))
    try data.write(to: URL(fileURLWithPath: directory.dataFile))
    #expect(DataFile.extendFileToLastPage(path: directory.dataFile, maximumPageCount: 100))
    #expect(DataFile.inspect(path: directory.dataFile, mapByteCount: 1 << 20) == .healthy)
  }
}
