import Foundation
import Testing

@testable import ResponseStore

@Suite("Borrowed responses")
struct BorrowedResponseTests {
  @Test(
    "The pieces of a borrowed body form the body, while the write is pending and from disk",
    arguments: [0, 1, 900, 16_368, 16_369, 200_000])
  func pieces(byteCount: Int) throws {
    let fixture = try StoreFixture()
    let url = "http://example.com/borrowed"
    let body = pseudorandomData(byteCount, seed: 5)
    fixture.store.store(fixture.response(url, body: body))
    // A pending write, then the first read from disk, then a read with verified checksums.
    for round in 0..<3 {
      var bytes: [UInt8] = []
      let status = fixture.store.withResponse(fixture.key(url)) { response in
        response.forEachPiece { piece in piece.withUnsafeBytes { bytes += $0 } }
        #expect(response.bodyByteCount == byteCount)
        #expect(response.fields["Content-Type"] == "text/plain")
        return response.status
      }
      #expect(status == 200)
      #expect(bytes == [UInt8](body))
      if round == 0 { try fixture.store.flush() }
    }
    #expect(fixture.store.withResponse(fixture.key("http://example.com/absent"), { _ in true }) == nil)
    fixture.finish()
  }
}
