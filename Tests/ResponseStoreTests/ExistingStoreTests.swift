import Foundation
import LMDB
import ResponseStore
import Testing

@Suite("Opening an existing store", .endsFixtures)
struct ExistingStoreTests {
  private func emptyDirectory() throws -> URL {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("existing-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
    return directory
  }

  private func expectFailure(
    _ code: StoreError.Code, _ path: String, options: ResponseStore.Options = .existing,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    #expect(sourceLocation: sourceLocation) {
      _ = try ResponseStore.open(directory: path, options: options)
    } throws: {
      ($0 as? StoreError)?.code == code
    }
  }

  @Test("Opening an existing store creates nothing if there is none")
  func missing() throws {
    let directory = try emptyDirectory()
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    expectFailure(.notFound, directory.path)
    expectFailure(.notFound, directory.appendingPathComponent("a/b").path)
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path) == [])
  }

  @Test("Opening keeps the store's own capacity, and inspection leaves the data unchanged")
  func capacityStays() throws {
    let fixture = try StoreFixture(capacity: 24 << 20)
    fixture.store.store(fixture.response("http://a.example/1", body: pseudorandomData(100_000, seed: 1)))
    fixture.drain()
    fixture.close()
    let data = URL(fileURLWithPath: fixture.directory + "/data-1/data.mdb")
    let before = try Data(contentsOf: data)
    let store = try ResponseStore.open(directory: fixture.directory, options: .existing)
    #expect(store.capacityByteCount == 24 << 20)
    #expect(store.environment.information.mapByteCount >= 24 << 20)
    #expect(store.entryCount == 1)
    #expect(store.checkInvariants() == [])
    // A cache requires background threads, which a store that is open for inspection lacks.
    expectFailure(.busy, fixture.directory, options: ResponseStore.Options(capacityByteCount: 8 << 20))
    store.close()
    #expect(try Data(contentsOf: data) == before)
  }

  @Test("Opening an existing store reports corrupt data and does not move it")
  func damaged() throws {
    let fixture = try StoreFixture()
    fixture.close()
    let data = fixture.directory + "/data-1/data.mdb"
    #expect(truncate(data, 4096) == 0)
    expectFailure(.corrupt, fixture.directory)
    #expect(FileManager.default.fileExists(atPath: data))
  }
}
