import FoundationEssentials
import Glibc
import HTTPCaching
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Pending writes")
struct PendingWriteTests {
  private let now = Date(timeIntervalSinceReferenceDate: 0)

  private func write(
    _ purpose: PendingWrite.Purpose = .insert, of original: PendingWrite? = nil, rowID: UInt64 = 0, body: [UInt8] = [1]
  ) throws -> PendingWrite {
    let response = CacheableResponse(
      status: 200, fields: HeaderFields(), body: Data(body),
      freshness: FreshnessInfo(responseTime: now, initialAge: 0, lifetime: 60, date: now), vary: VaryKey(fields: []))
    return PendingWrite(
      response, for: try #require(RequestKey(urlString: "http://example.com/")), storedAt: now, purpose: purpose,
      rowID: rowID, original: original, removalSequence: 0, inlineByteCount: 1000)
  }

  private func update(
    of original: PendingWrite? = nil, rowID: UInt64 = 0, body: [UInt8] = [1]
  ) throws -> PendingWrite {
    try write(.replaceHead, of: original, rowID: rowID, body: body)
  }

  /// Calls `malloc_usable_size`, which the module of the C library lacks.
  private func usableByteCount(of memory: UnsafeMutableRawPointer) throws -> Int {
    let symbol = try #require(dlsym(nil, "malloc_usable_size"))
    return unsafeBitCast(symbol, to: (@convention(c) (UnsafeMutableRawPointer) -> Int).self)(memory)
  }

  @Test("The memory of a pending write is too large for the allocator's lists of small blocks")
  func pieces() throws {
    let write = try self.write()
    // A small block has up to 128 bytes, of which 8 belong to the allocator.
    #expect(try usableByteCount(of: Unmanaged.passUnretained(write).toOpaque()) > 120)
    try write.head.bytes.withUnsafeBytes { bytes in
      // The array's header precedes its elements.
      let start = UnsafeMutableRawPointer(mutating: try #require(bytes.baseAddress)) - 32
      #expect(try usableByteCount(of: start) > 120)
    }
  }

  @Test("A pending write and its updates are one record and share its row ID")
  func record() throws {
    let write = try self.write()
    let first = try update(of: write)
    let second = try update(of: first)
    let other = try self.write()
    #expect(second.isSameRecord(as: first) && second.isSameRecord(as: write) && !second.isSameRecord(as: other))
    #expect(second.rowID == 0)
    second.setRowID(7)
    #expect([write.rowID, first.rowID, second.rowID, other.rowID] == [7, 7, 7, 0])
    // An update of a committed record is matched by its row ID, and by its body if the row ID was reused.
    #expect(try update(rowID: 7).isSameRecord(as: write))
    #expect(try !update(rowID: 7, body: [2]).isSameRecord(as: write))
    #expect(try !update(rowID: 8).isSameRecord(as: write))
  }
}
