import Foundation
import LMDB
import Testing

/// A caller's mistake ends the process. Each case runs in a process of its own.
@Suite("Traps")
struct TrapTests {
  init() {
    _ = TemporaryDirectory.root
  }

  /// Expects the process to have said why it ended.
  private func expect(_ sentence: String, in result: ExitTest.Result?) {
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains(sentence), "\(text.prefix(400))")
  }

  @Test("A write within a write of the same thread")
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

  @Test("Opening a new table within a write")
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

  @Test("A table with a read transaction of another environment")
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

  @Test("A table with a write transaction of another environment")
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

  @Test("A table of an environment that was closed, with a transaction of its successor")
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

  @Test("A cursor on a transaction of another environment")
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

  @Test("Live pages of another environment's transaction")
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

  @Test("Options out of range")
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

  @Test("A map size that is not positive")
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

  @Test("Moving the map within a transaction of the same thread")
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

  @Test("A write while stored bytes of its transaction are borrowed")
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

  @Test("A write while reserved room is filled")
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

  @Test("Reserving a negative number of bytes")
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

  @Test("Removing through a cursor of a read transaction")
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

  @Test("The entry of a cursor that stands nowhere: new, past the end, after a removal")
  func unpositionedCursor() async {
    expect(
      "stands on no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.lookAtCursor { _ throws(LMDBError) in }
      })
    expect(
      "stands on no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.lookAtCursor { cursor throws(LMDBError) in while try cursor.next() {} }
      })
    expect(
      "stands on no entry",
      in: await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
        try TrapTests.lookAtCursor { cursor throws(LMDBError) in
          try cursor.first()
          try cursor.remove()
        }
      })
    await #expect(processExitsWith: .success) {
      try TrapTests.lookAtCursor { cursor throws(LMDBError) in try cursor.first() }
    }
  }

  private static func lookAtCursor(
    _ move: (inout Cursor<BigEndianUInt64, BytesCodec>) throws(LMDBError) -> Void
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

  @Test("An inconsistency that liblmdb asserts on is reported before the process ends")
  func assertion() async {
    let observed = await #expect(processExitsWith: .signal(SIGABRT), observing: [\.standardErrorContent]) {
      let directory = TemporaryDirectory()
      _ = try Fixture.populated(directory)
      // The table of tables has one entry; a branch page must have two.
      let data = try Data(contentsOf: URL(fileURLWithPath: directory.dataFile))
      let page = Int(getpagesize())
      let newer = data[144] > data[page + 144] ? 0 : page
      try directory.overwriteDataFile(at: Int(data[newer + 128]) * page + 10, with: [1, 0])
      _ = try directory.open().table("table", key: BytesCodec.self, value: BytesCodec.self)
    }
    expect("is damaged; liblmdb ends the process: ", in: observed)
  }
}
