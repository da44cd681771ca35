import CXXHash
import CacheModel
import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// Compares the bytes of the database with the article StorageFormat.md.
///
/// If a test fails, the format has changed: change its version and the article, too.
@Suite("Bytes on disk as in the article on the storage format")
struct StorageFormatTests {
  private static let storedAt = Date(timeIntervalSinceReferenceDate: 800_000_000.25)
  private static let capacity = 16 << 20

  /// A row of a table.
  private struct Row {
    var key: [UInt8]
    var value: [UInt8]
  }

  private func withStore(_ body: (ResponseStore, _ rows: (String) throws -> [Row]) throws -> Void) throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("format-\(UUID().uuidString)").path
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(atPath: directory) }
    var options = ResponseStore.Options(capacityByteCount: Self.capacity)
    options.clock = { Self.storedAt }
    options.runsInBackground = false
    let store = try ResponseStore.open(directory: directory, options: options)
    // The store's environment: a process opens only one per directory.
    let environment = try LMDBEnvironment.open(
      directory: directory + "/data-1", options: .init(mapByteCount: Self.capacity))
    try body(store) { name in
      let table = try environment.table(name, key: BytesCodec.self, value: BytesCodec.self)
      return try environment.read { (transaction) throws(LMDBError) in
        try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
          var rows: [Row] = []
          while try cursor.next() { rows.append(Row(key: cursor.key ?? [], value: cursor.value ?? [])) }
          return rows
        }
      }
    }
    #expect(store.checkInvariants() == [])
    store.close()
  }

  private func response(_ url: String, body: Data) throws -> KeyedResponse {
    let freshness = FreshnessInfo(
      responseTime: Self.storedAt - 1, initialAge: 2, lifetime: 60, date: Self.storedAt - 3, staleWhileRevalidate: 4,
      staleIfError: -1, flags: FreshnessInfo.Flags(rawValue: 1 << 5 | 1 << 10))
    let response = CacheableResponse(
      status: 200, fields: ["ETag": "\"v\"", "Vary": "Accept, A"], body: body, freshness: freshness,
      vary: VaryKey(fields: [.init(name: "a", value: nil), .init(name: "accept", value: "*/*")]))
    return KeyedResponse(
      key: try #require(RequestKey(urlString: url)), response: response, attachment: [7, 8, 9])
  }

  /// Returns an integer as it is encoded in values.
  private func little<T: FixedWidthInteger>(_ value: T) -> [UInt8] {
    withUnsafeBytes(of: value.littleEndian) { Array($0) }
  }

  /// Returns an integer as it is encoded in keys.
  private func big<T: FixedWidthInteger>(_ value: T) -> [UInt8] { little(value).reversed() }

  private func little(_ date: Date) -> [UInt8] { little(date.timeIntervalSinceReferenceDate.bitPattern) }

  private func little(_ seconds: Double) -> [UInt8] { little(seconds.bitPattern) }

  private func counted(_ text: String) -> [UInt8] { little(UInt32(text.utf8.count)) + Array(text.utf8) }

  @Test("A record with an inline body has the documented bytes")
  func inlineBody() throws {
    try withStore { store, rows in
      let stored = try response("http://Example.com/a?q=1#part", body: Data("hello".utf8))
      store.store(stored)
      store.writePending()

      let key = Array("example.com\0http:80\0/a?q=1\0GET\0".utf8)
      // A small record goes to the band of the longest expected life.
      let headRows = try rows("heads0")
      #expect(headRows.map(\.key) == [big(UInt64(8))])
      let record = try #require(headRows.first).value

      let dateRows = try rows("dates")
      let ordered = Self.storedAt.timeIntervalSinceReferenceDate.bitPattern | 1 << 63
      #expect(dateRows.map(\.key) == [big(ordered) + big(UInt64(8))])
      #expect(
        dateRows.map(\.value) == [try freshness(of: key, host: "example.com", rows, recordByteCount: record.count)])

      #expect(try rows("bodies").isEmpty)

      let vary = counted("a") + little(UInt32.max) + counted("accept") + counted("*/*")
      let fields = counted("ETag") + counted("\"v\"") + counted("Vary") + counted("Accept, A")
      #expect(record.count == 128 + key.count + vary.count + fields.count + 3 + 5)
      // Versions, flags and sizes: offsets 8 to 39.
      var expected: [UInt8] = [4, 1 | 2]
      expected += little(UInt16(200)) + little(UInt32(1 << 5 | 1 << 10))
      expected += little(UInt32(key.count)) + little(UInt32(vary.count)) + little(UInt32(fields.count))
      expected += little(UInt32(3)) + little(UInt64(5))
      #expect(Array(record[8..<40]) == expected)
      // Times: offsets 48 to 103. Then the last removal, the body ID, which is 0 for an inline body, and the last
      // update.
      expected = little(Self.storedAt) + little(Self.storedAt - 1) + little(2.0) + little(60.0)
      expected += little(Self.storedAt - 3) + little(4.0) + little(-1.0)
      expected += [UInt8](repeating: 0, count: 16) + little(Self.storedAt)
      #expect(Array(record[48..<128]) == expected)
      #expect(Array(record[128...]) == key + vary + fields + [7, 8, 9] + Array("hello".utf8))
    }
  }

  /// Returns the index word of a new record, as stored with its date.
  private func freshness(
    of key: [UInt8], host: String, _ rows: (String) throws -> [Row], recordByteCount: Int
  ) throws -> [UInt8] {
    let secret = Array(try #require(rows("meta").last).value[8..<200])
    func digest(_ bytes: [UInt8]) -> UInt64 {
      secret.withUnsafeBytes { secret in
        bytes.withUnsafeBytes { XXH3_64bits_withSecret($0.baseAddress, $0.count, secret.baseAddress, secret.count) }
      }
    }
    let size = UInt64(log2(Double(recordByteCount) / 64) * 8)
    return little((digest(key) >> 24) << 24 | (digest(Array(host.utf8)) >> 52) << 12 | 1 << 8 | size)
  }

  @Test("A body in chunks and a long key have the documented bytes")
  func chunksAndLongKey() throws {
    try withStore { store, rows in
      let chunk = 4 * Int(getpagesize()) - 16
      let body = Data((0..<(2 * chunk + 10)).map { UInt8(truncatingIfNeeded: $0) })
      store.store(try response("http://h/" + String(repeating: "x", count: 600), body: body))
      store.writePending()

      let bodyRows = try rows("bodies")
      #expect(bodyRows.map(\.key) == (0..<3).map { big(UInt64(8 + 4)) + big(UInt32($0)) })
      #expect(bodyRows.map(\.value.count) == [chunk, chunk, 10])
      #expect(Data(bodyRows.flatMap(\.value)) == body)

      let record = try #require(rows("heads4").first).value
      #expect(record[9] == 2, "the body is not in the record")
      let key = Array(("h\0http:80\0/" + String(repeating: "x", count: 600) + "\0GET\0").utf8)
      #expect(Array(record[128..<(128 + key.count)]) == key)
    }
  }

  @Test("The index file has the documented layout")
  func index() throws {
    try withStore { store, rows in
      store.store(try response("http://h/a", body: Data("hello".utf8)))
      store.writePending()
      let file = try Data(contentsOf: URL(fileURLWithPath: store.directory + "/data-1/LMDBURLCache.index"))
      func word(_ offset: Int) -> UInt64 {
        file.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: offset, as: UInt64.self) }
      }
      #expect(file.prefix(8) == Data("LMBCIDX5".utf8))
      let secret = try #require(rows("meta").last).value[8..<200]
      #expect(word(8) == Array(secret).withUnsafeBytes { XXH3_64bits($0.baseAddress, $0.count) })
      let cellCount = Int(word(16))
      let journal = 24 << 10
      #expect(file.count == 4096 + journal + (cellCount + 512) * 16 + cellCount / 4 * 8)
      #expect(word(24) != 0, "the number of the file")
      let status = try Data(contentsOf: URL(fileURLWithPath: store.directory + "/users.lock"))
      #expect(status.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: 256, as: UInt64.self) } == word(24))
      var attributes = stat()
      #expect(stat(store.directory + "/data-1/LMDBURLCache.index", &attributes) == 0)
      #expect((word(32), word(40)) == (UInt64(attributes.st_ino), UInt64(attributes.st_dev)))
      #expect(word(128) == 1 << 32, "one record")
      #expect((word(144), word(152)) == (0, 0), "the journal is empty")

      let freshness = try #require(rows("dates").first).value
      let tag = freshness.withUnsafeBytes { $0.loadUnaligned(as: UInt64.self) } >> 24
      let cell = 4096 + journal + Int((tag * UInt64(cellCount)) >> 40) * 16
      #expect(Array(file[cell..<(cell + 8)]) == freshness)
      #expect(word(cell + 8) & (1 << 44 - 1) == 8, "the row ID")
    }
  }

  @Test("The rows of the meta table have the documented bytes")
  func meta() throws {
    try withStore { store, rows in
      store.store(try response("http://h/a", body: Data("hello".utf8)))
      store.writePending()
      var metaRows = try rows("meta")
      #expect(metaRows.map { String(decoding: $0.key, as: UTF8.self) } == ["counters", "format"])
      let format = metaRows[1].value
      #expect(format.count == 4 + 4 + 192 + 8)
      #expect(Array(format[..<8]) == little(UInt32(8)) + little(UInt32(4 * Int(getpagesize()) - 16)))

      let recordByteCount = try #require(rows("heads0").first).value.count
      var expected = little(UInt64(16)) + little(UInt64(1)) + little(UInt64(recordByteCount))
      // Three numbers of removals and tombstones, and the number of key spaces, are zero.
      expected += little(UInt64(Self.capacity)) + [UInt8](repeating: 0, count: 32)
      // The open segment: its first row ID, its bytes, its record count.
      let sizeCode = UInt64(log2(Double(recordByteCount) / 64) * 8)
      expected += little(UInt64(8)) + little(UInt64(64 * exp2(Double(sizeCode) / 8))) + little(UInt64(1))
      #expect(Array(metaRows[0].value.dropLast(8)) == expected)

      store.remove(.host("h"))
      metaRows = try rows("meta")
      #expect(metaRows.count == 2, "few records are deleted directly")
      // The last applied removal, and the last known one.
      #expect(Array(metaRows[0].value[32..<48]) == little(UInt64(1)) + little(UInt64(1)))
    }
  }

  @Test("A tombstone and the removal log have the documented bytes")
  func removals() throws {
    try withStore { store, rows in
      for number in 0..<300 {
        store.store(try response("http://h/\(number)", body: Data("hello".utf8)))
        store.writePending()
      }
      store.remove(.host("h"))
      let tombstone = try #require(rows("meta").last)
      #expect(tombstone.key == Array("purge/".utf8) + big(UInt64(1)))
      // A hard one of a prefix.
      let removal: [UInt8] = [0, 3] + Array("h\0".utf8)
      #expect(Array(tombstone.value.dropLast(8)) == little(UInt64(301 * 8)) + removal)
      #expect(try rows("meta").count == 3)
      store.maintain()
      let sweep = try #require(rows("meta").last)
      // The tombstone's last row ID, the position in `dates`, and the number of examined rows.
      #expect(sweep.key == Array("sweep".utf8))
      #expect(sweep.value.count == 40 && Array(sweep.value[..<8]) == little(UInt64(301 * 8)))

      store.store(try response("http://h/new", body: Data("hello".utf8)))
      store.writePending()
      let record = try #require(rows("heads0").last).value
      #expect(Array(record[104..<112]) == little(UInt64(1)), "it was stored after removal 1")

      let log = [UInt8](try Data(contentsOf: URL(fileURLWithPath: store.directory + "/data-1/LMDBURLCache.removals")))
      #expect(log.count == 4096 + 256 * 512)
      #expect(Array(log[..<8]) == Array("LMCERML1".utf8))
      #expect(Array(log[16..<24]) == little(UInt64(256)))
      #expect(Array(log[64..<72]) == little(UInt64(1)))
      #expect(Array(log[128..<136]) == little(UInt64(1)))
      let frame = log[(4096 + 512)..<(4096 + 1024)]
      let expected = little(UInt64(1)) + little(UInt32(removal.count)) + removal
      #expect(Array(frame.dropFirst(8).prefix(expected.count)) == expected)
    }
  }
}
