import Foundation
import LMDB
import Testing

/// Tests of programming errors, which end the process. Each case runs in its own process.
@Suite("Traps")
struct TrapTests {
  init() {
    _ = TemporaryDirectory.root
  }

  /// Expects the process to have printed the reason for its end.
  private func expect(_ sentence: String, in result: ExitTest.Result?) {
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains(sentence), "\(text.prefix(400))")
  }

  @Test("A write within a write of the same thread traps")
  func nestedWrite() async {
    expect(
      "write(_:) was called within another write(_:)",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let environment = try Fixture().environment
        try environment.write { _ throws(LMDBError) in
          try environment.write { _ throws(LMDBError) in }
        }
      })
  }

  @Test("Opening a new table within a write traps")
  func tableWithinWrite() async {
    expect(
      "write(_:) was called within another write(_:)",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let environment = try Fixture().environment
        try environment.write { _ throws(LMDBError) in
          _ = try environment.table("new", key: BytesCodec.self, value: BytesCodec.self)
        }
      })
  }

  @Test("Using a table with a read transaction of another environment traps")
  func foreignRead() async {
    expect(
      "belongs to another environment",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let (one, other) = (try Fixture(), try Fixture())
        try one.environment.read { transaction throws(LMDBError) in
          _ = try other.table.contains(1, in: transaction)
        }
      })
  }

  @Test("Using a table with a write transaction of another environment traps")
  func foreignWrite() async {
    expect(
      "belongs to another environment",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let (one, other) = (try Fixture(), try Fixture())
        try one.environment.write { transaction throws(LMDBError) in
          _ = try other.table.put([], for: 1, in: transaction)
        }
      })
  }

  @Test("Using a table of a closed environment with a transaction of the reopened one traps")
  func closedEnvironment() async {
    expect(
      "belongs to another environment",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let directory = TemporaryDirectory()
        let table = try directory.open().table("table", key: BytesCodec.self, value: BytesCodec.self)
        try directory.open().read { transaction throws(LMDBError) in
          _ = try table.contains([1], in: transaction)
        }
      })
  }

  @Test("Opening a cursor in a transaction of another environment traps")
  func foreignCursor() async {
    expect(
      "belongs to another environment",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let (one, other) = (try Fixture(), try Fixture())
        try one.environment.read { transaction throws(LMDBError) in
          try other.table.withCursor(in: transaction) { cursor throws(LMDBError) in _ = try cursor.first() }
        }
      })
  }

  @Test("Counting live pages in a transaction of another environment traps")
  func foreignLivePages() async {
    expect(
      "belongs to another environment",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let (one, other) = (try Fixture(), try Fixture())
        try one.environment.read { transaction throws(LMDBError) in
          _ = try other.environment.livePageCount(in: transaction)
        }
      })
  }

  @Test("Options out of range trap")
  func options() async {
    expect(
      "map size must be positive",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        _ = try TemporaryDirectory().open(mapByteCount: 0)
      })
    expect(
      "map size must be positive",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        _ = try TemporaryDirectory().open(mapByteCount: -4096)
      })
    expect(
      "number of readers",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        _ = try TemporaryDirectory().open { $0.maximumReaders = 0 }
      })
    expect(
      "number of tables",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        _ = try TemporaryDirectory().open { $0.maximumTables = -1 }
      })
  }

  @Test("Setting a map size that is not positive traps")
  func mapByteCount() async {
    expect(
      "the map size must be positive",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try Fixture().environment.setMapByteCount(-1)
      })
    expect(
      "the map size must be positive",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try Fixture().environment.setMapByteCount(0)
      })
  }

  @Test("Setting the map size within a transaction of the same thread traps")
  func mapWithinTransaction() async {
    expect(
      "setMapByteCount(_:) was called within a transaction",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let environment = try Fixture().environment
        try environment.read { _ throws(LMDBError) in try environment.setMapByteCount(2 << 20) }
      })
    expect(
      "setMapByteCount(_:) was called within a transaction",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let environment = try Fixture().environment
        try environment.write { _ throws(LMDBError) in try environment.setMapByteCount(2 << 20) }
      })
  }

  @Test("Writing while stored bytes of the transaction are borrowed traps")
  func writeDuringBorrow() async {
    expect(
      "borrows stored bytes",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let fixture = try Fixture()
        try fixture.put([1])
        try fixture.environment.write { transaction throws(LMDBError) in
          _ = try fixture.table.withValue(for: 1, in: transaction) { _ throws(LMDBError) in
            try fixture.table.put([], for: 2, in: transaction)
          }
        }
      })
  }

  @Test("Writing while reserved space is being filled traps")
  func writeDuringFill() async {
    expect(
      "borrows stored bytes",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let fixture = try Fixture()
        try fixture.environment.write { transaction throws(LMDBError) in
          _ = try fixture.table.reserve(byteCount: 10, for: 1, in: transaction) { _ in
            _ = error { () throws(LMDBError) in try fixture.table.remove(2, in: transaction) }
          }
        }
      })
  }

  @Test("Reserving a negative number of bytes traps")
  func negativeReserve() async {
    expect(
      "must not be negative",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let fixture = try Fixture()
        try fixture.environment.write { transaction throws(LMDBError) in
          _ = try fixture.table.reserve(byteCount: -1, for: 1, in: transaction) { _ in }
        }
      })
  }

  @Test("Removing through a cursor of a read transaction traps")
  func removeInRead() async {
    expect(
      "cursor of a read transaction",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        let fixture = try Fixture()
        try fixture.put([1])
        try fixture.environment.read { transaction throws(LMDBError) in
          try fixture.table.withCursor(in: transaction) { cursor throws(LMDBError) in
            try cursor.first()
            try cursor.remove()
          }
        }
      })
  }

  @Test("Reading the entry of a cursor that is new, past the end, or whose entry was removed traps")
  func unpositionedCursor() async {
    expect(
      "is at no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.readKey { _ throws(LMDBError) in }
      })
    expect(
      "is at no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.readKey { cursor throws(LMDBError) in while try cursor.next() {} }
      })
    expect(
      "is at no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.readKey { cursor throws(LMDBError) in
          try cursor.first()
          try cursor.remove()
        }
      })
    await #expect(processExitsWith: .success) {
      try TrapTests.readKey { cursor throws(LMDBError) in try cursor.first() }
    }
  }

  /// Reads the key of a cursor after moving it.
  private static func readKey(
    _ move: (inout Cursor<BigEndianUInt64Codec, BytesCodec>) throws(LMDBError) -> Void
  ) throws {
    let fixture = try Fixture()
    try fixture.put([1])
    try fixture.environment.write { transaction throws(LMDBError) in
      try fixture.table.withCursor(in: transaction) { cursor throws(LMDBError) in
        try move(&cursor)
        _ = cursor.key
      }
    }
  }

  @Test("A failed assertion in liblmdb is reported before the process ends")
  func assertion() async {
    let observed = await #expect(processExitsWith: .signal(SIGABRT), observing: [\.standardErrorContent]) {
      let directory = TemporaryDirectory()
      _ = try Fixture.populated(directory)
      // Turn the main table's page, which has one entry, into a branch page, which must have two.
      let data = try Data(contentsOf: URL(fileURLWithPath: directory.dataFile))
      let page = Int(getpagesize())
      let newer = data[144] > data[page + 144] ? 0 : page
      try directory.overwriteDataFile(at: Int(data[newer + 128]) * page + 10, with: [1, 0])
      _ = try directory.open().table("table", key: BytesCodec.self, value: BytesCodec.self)
    }
    expect("is corrupt; liblmdb ends the process: ", in: observed)
  }
}
