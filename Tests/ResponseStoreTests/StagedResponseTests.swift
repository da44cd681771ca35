import FoundationEssentials
import Glibc
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("A response on its way to the disk")
struct StagedResponseTests {
  private let now = Date(timeIntervalSinceReferenceDate: 0)

  private func response(_ body: [UInt8] = [1]) throws -> NewResponse {
    NewResponse(
      key: try #require(RequestKey(urlString: "http://example.com/")), status: 200, fields: HTTPFields(),
      body: Data(body), facts: FreshnessFacts(responseTime: now, initialAge: 0, lifetime: 60, date: now),
      vary: VarySelection(selectors: []))
  }

  private func update(
    of original: StagedResponse? = nil, rowID: UInt64 = 0, body: [UInt8] = [1]
  ) throws -> StagedResponse {
    StagedResponse(
      try response(body), storedAt: now, purpose: .replaceHead, rowID: rowID, original: original, snapshot: 0,
      inlineByteCount: 1000)
  }

  /// `malloc_usable_size`, which the module of the C library leaves out.
  private func usableByteCount(of memory: UnsafeMutableRawPointer) throws -> Int {
    let symbol = try #require(dlsym(nil, "malloc_usable_size"))
    return unsafeBitCast(symbol, to: (@convention(c) (UnsafeMutableRawPointer) -> Int).self)(memory)
  }

  @Test("Its memory is of the size that the allocator gives back piece by piece, not all pieces at once with its lock")
  func pieces() throws {
    let staged = StagedResponse(try response(), storedAt: now, snapshot: 0, inlineByteCount: 1000)
    // The list of small pieces takes up to 128 bytes, of which 8 are the allocator's.
    #expect(try usableByteCount(of: Unmanaged.passUnretained(staged).toOpaque()) > 120)
    try staged.head.bytes.withUnsafeBytes { bytes in
      // The array's own header lies in front of its elements.
      let start = UnsafeMutableRawPointer(mutating: try #require(bytes.baseAddress)) - 32
      #expect(try usableByteCount(of: start) > 120)
    }
  }

  @Test("A response, its updates and theirs are one record, whose row all of them know")
  func record() throws {
    let staged = StagedResponse(try response(), storedAt: now, snapshot: 0, inlineByteCount: 1000)
    let first = try update(of: staged)
    let second = try update(of: first)
    let other = StagedResponse(try response(), storedAt: now, snapshot: 0, inlineByteCount: 1000)
    #expect(second.isSameRecord(as: first) && second.isSameRecord(as: staged) && !second.isSameRecord(as: other))
    #expect(second.rowID == 0)
    second.setRowID(7)
    #expect([staged.rowID, first.rowID, second.rowID, other.rowID] == [7, 7, 7, 0])
    // One that was read from the disk is known by its row; where that was taken anew, by its body.
    #expect(try update(rowID: 7).isSameRecord(as: staged))
    #expect(try !update(rowID: 7, body: [2]).isSameRecord(as: staged))
    #expect(try !update(rowID: 8).isSameRecord(as: staged))
  }
}
