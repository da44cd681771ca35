import Foundation
import Testing

@testable import ResponseStore

@Suite("Borrowed responses")
struct BorrowedResponseTests {
  @Test("The pieces of a body are the body, staged and on disk", arguments: [0, 1, 900, 16_368, 16_369, 200_000])
  func pieces(byteCount: Int) throws {
    let fixture = try StoreFixture()
    let url = "http://example.com/borrowed"
    let body = pseudorandomData(byteCount, seed: 5)
    fixture.store.store(fixture.response(url, body: body))
    // Staged; then read from the disk for the first time, and again when its checksums are known.
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
