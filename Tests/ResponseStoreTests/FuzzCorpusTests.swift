import Foundation
import Testing

// The targets belong to no product.
@testable import Fuzz

/// Runs the targets of `Scripts/fuzz` without libFuzzer, in a few seconds.
@Suite("Seeds of the fuzzers")
struct FuzzCorpusTests {
  private static let folder = URL(filePath: #filePath).deletingLastPathComponent()
    .appending(path: "../Fuzz/Corpus").standardized

  @Test(
    "Each seed of a fuzzer, and inputs that differ a little, violate nothing", arguments: FuzzTarget.all.map(\.name))
  func seeds(name: String) throws {
    let target = try #require(FuzzTarget.all.first { $0.name == name })
    let files = try FileManager.default.contentsOfDirectory(
      at: Self.folder.appending(path: name), includingPropertiesForKeys: nil)
    try #require(!files.isEmpty)
    let seed = UInt64.random(in: 0...UInt64.max)
    // Printed before the first input, because a violation ends the process.
    print("Inputs of the fuzz target \(name) are made with the seed \(seed).")
    var random = SeededGenerator(seed: seed)
    // A sequence of operations on a store takes some milliseconds.
    let count = name == "store-contract" ? 2 : 400
    for file in files {
      let bytes = [UInt8](try Data(contentsOf: file))
      bytes.withUnsafeBytes(target.run)
      for _ in 0..<count {
        Self.changed(bytes, &random).withUnsafeBytes(target.run)
      }
    }
  }

  /// Bytes with a few of them replaced, inserted, repeated or removed.
  private static func changed(_ bytes: [UInt8], _ random: inout SeededGenerator) -> [UInt8] {
    var bytes = bytes
    for _ in 0..<Int.random(in: 1...4, using: &random) {
      let index = Int.random(in: 0...bytes.count, using: &random)
      let end = min(bytes.count, index + Int.random(in: 0...8, using: &random))
      switch Int.random(in: 0..<4, using: &random) {
      case 0: bytes.replaceSubrange(index..<end, with: (index..<end).map { _ in .random(in: 0...255, using: &random) })
      case 1: bytes.insert(.random(in: 0...255, using: &random), at: index)
      case 2: bytes.insert(contentsOf: bytes[index..<end], at: index)
      default: bytes.removeSubrange(index..<end)
      }
    }
    return bytes
  }
}
