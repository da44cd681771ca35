import Foundation
import LMDB
import Testing

/// Tests of programming errors, which end the process. Each case runs in its own process.
@Suite("Traps")
struct TrapTests {
  init() {
    _ = TemporaryDirectory.root
  }

  enum Misuse: CaseIterable, Codable, Sendable {
    case writeWithinWrite, tableWithinWrite
    case foreignRead, foreignWrite, foreignCursor, foreignLivePages, tableOfClosedEnvironment
    case noMap, negativeMap, noReaders, negativeTables
    case setNegativeMap, setMapWithinRead, setMapWithinWrite
    case writeWhileBorrowing, writeWhileFilling, negativeReserve
    case removeInRead, newCursor, cursorPastTheEnd, cursorAtRemovedEntry

    /// The text of the message.
    var reason: String {
      switch self {
      case .writeWithinWrite, .tableWithinWrite: "write(_:) was called within another write(_:)"
      case .foreignRead, .foreignWrite, .foreignCursor, .foreignLivePages, .tableOfClosedEnvironment:
        "belongs to another environment"
      case .noMap, .negativeMap, .setNegativeMap: "map size must be positive"
      case .noReaders: "number of readers"
      case .negativeTables: "number of tables"
      case .setMapWithinRead, .setMapWithinWrite: "setMapByteCount(_:) was called within a transaction"
      case .writeWhileBorrowing, .writeWhileFilling: "borrows stored bytes"
      case .negativeReserve: "must not be negative"
      case .removeInRead: "cursor of a read transaction"
      case .newCursor, .cursorPastTheEnd, .cursorAtRemovedEntry: "is at no entry"
      }
    }

    func commit() throws {
      switch self {
      case .noMap: _ = try TemporaryDirectory().open(mapByteCount: 0)
      case .negativeMap: _ = try TemporaryDirectory().open(mapByteCount: -4096)
      case .noReaders: _ = try TemporaryDirectory().open { $0.maximumReaders = 0 }
      case .negativeTables: _ = try TemporaryDirectory().open { $0.maximumTables = -1 }
      case .setNegativeMap: try Fixture().environment.setMapByteCount(-1)
      case .tableOfClosedEnvironment:
        let directory = TemporaryDirectory()
        let table = try directory.open().table("table", key: BytesCodec.self, value: BytesCodec.self)
        try directory.open().read { transaction throws(LMDBError) in
          _ = try table.contains([1], in: transaction)
        }
      case .foreignRead, .foreignCursor, .foreignLivePages, .setMapWithinRead, .removeInRead: try commitInRead()
      default: try commitInWrite()
      }
    }

    private func commitInRead() throws {
      let (fixture, other) = (try Fixture(), try Fixture())
      try fixture.put([1])
      try fixture.environment.read { transaction throws(LMDBError) in
        switch self {
        case .foreignRead: _ = try other.table.contains(1, in: transaction)
        case .foreignCursor:
          try other.table.withCursor(in: transaction) { cursor throws(LMDBError) in _ = try cursor.first() }
        case .foreignLivePages: _ = try other.environment.livePageCount(in: transaction)
        case .setMapWithinRead: try fixture.environment.setMapByteCount(2 << 20)
        default:
          try fixture.table.withCursor(in: transaction) { cursor throws(LMDBError) in
            try cursor.first()
            try cursor.remove()
          }
        }
      }
    }

    private func commitInWrite() throws {
      let (fixture, other) = (try Fixture(), try Fixture())
      let environment = fixture.environment
      try fixture.put([1])
      try environment.write { transaction throws(LMDBError) in
        switch self {
        case .writeWithinWrite: try environment.write { _ throws(LMDBError) in }
        case .tableWithinWrite: _ = try environment.table("new", key: BytesCodec.self, value: BytesCodec.self)
        case .foreignWrite: _ = try other.table.put([], for: 1, in: transaction)
        case .setMapWithinWrite: try environment.setMapByteCount(2 << 20)
        case .writeWhileBorrowing:
          _ = try fixture.table.withValue(for: 1, in: transaction) { _ throws(LMDBError) in
            try fixture.table.put([], for: 2, in: transaction)
          }
        case .writeWhileFilling:
          _ = try fixture.table.reserve(byteCount: 10, for: 1, in: transaction) { _ in
            _ = error { () throws(LMDBError) in try fixture.table.remove(2, in: transaction) }
          }
        case .negativeReserve: _ = try fixture.table.reserve(byteCount: -1, for: 1, in: transaction) { _ in }
        default:
          try fixture.table.withCursor(in: transaction) { cursor throws(LMDBError) in
            if self == .cursorPastTheEnd { while try cursor.next() {} }
            if self == .cursorAtRemovedEntry {
              try cursor.first()
              try cursor.remove()
            }
            _ = cursor.key
          }
        }
      }
    }
  }

  @Test("Each misuse ends the process with a message", arguments: Misuse.allCases)
  func misuse(_ misuse: Misuse) async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      [misuse = misuse as Misuse] in
      try misuse.commit()
    }
    expect(misuse.reason, in: result)
  }

  /// Expects the process to have printed the reason for its end.
  private func expect(_ sentence: String, in result: ExitTest.Result?) {
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains(sentence), "\(text.prefix(400))")
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
