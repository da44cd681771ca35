import LMDBURLCache
import RedisTier
import Testing

@Suite("Texts of errors")
struct ErrorTextTests {
  @Test("The localized description of an error that opening throws says the path, the cause and the remedy")
  func ofOpening() throws {
    let error = try #require(throws: StoreError.self) {
      try LMDBURLCache(directory: URL(fileURLWithPath: "/dev/null"), memoryCapacity: 0, diskCapacity: 16 << 20)
    }
    #expect(error.description.contains("/dev/null") && error.description.contains(error.remedy))
    #expect((error as any Error).localizedDescription == error.description)
  }

  @Test("The localized description of each public error is its description")
  func ofEachError() throws {
    let errors: [any Error & CustomStringConvertible] = [
      CurlTransportError(.timedOut, "nothing arrived"),
      CachingClientError.timedOut,
      RedisTierError(.cannotConnect, "connection refused"),
      LMDBError(code: .mapFull, function: "mdb_put"),
    ]
    for error in errors { #expect((error as any Error).localizedDescription == error.description) }
  }
}
