import Foundation
import LMDB
import Testing

@testable import ResponseStore

@Suite("Opening what is there")
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

  @Test("Nothing is made where nothing is")
  func missing() throws {
    let directory = try emptyDirectory()
    defer { try? FileManager.default.removeItem(at: directory) }  // Its absence fails no test.
    expectFailure(.missing, directory.path)
    expectFailure(.missing, directory.appendingPathComponent("a/b").path)
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path) == [])
  }

  @Test("The store's own capacity is taken, and a look leaves the data as it was")
  func capacityStays() throws {
    let fixture = try StoreFixture(capacity: 24 << 20)
    defer { fixture.remove() }
    fixture.store.store(fixture.response("http://a.example/1", body: pseudorandomData(100_000, seed: 1)))
    fixture.drain()
    fixture.store.close()
    let data = URL(fileURLWithPath: fixture.directory + "/data.mdb")
    let before = try Data(contentsOf: data)
    let store = try ResponseStore.open(directory: fixture.directory, options: .existing)
    #expect(store.capacityByteCount == 24 << 20)
    #expect(store.file.environment.information.mapByteCount >= 24 << 20)
    #expect(store.entryCount == 1)
    #expect(store.checkInvariants() == [])
    // A cache cannot do without threads, which a store opened for a look does not have.
    expectFailure(.busy, fixture.directory, options: ResponseStore.Options(capacityByteCount: 8 << 20))
    store.close()
    #expect(try Data(contentsOf: data) == before)
  }

  @Test("Damaged data is told of, and left where it is")
  func damaged() throws {
    let fixture = try StoreFixture()
    defer { fixture.remove() }
    fixture.store.close()
    let data = fixture.directory + "/data.mdb"
    #expect(truncate(data, 4096) == 0)
    expectFailure(.damaged, fixture.directory)
    #expect(FileManager.default.fileExists(atPath: data))
  }

  @Test("Another program's LMDB file stays as it is, however often a store is tried on it")
  func foreign() throws {
    let directory = try emptyDirectory()
    defer { try? FileManager.default.removeItem(at: directory) }  // Its absence fails no test.
    try makeForeignData(directory.path)
    let data = directory.appendingPathComponent("data.mdb")
    let before = try Data(contentsOf: data)
    expectFailure(.foreignFile, directory.path)
    #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path).sorted() == ["data.mdb", "lock.mdb"])
    var options = ResponseStore.Options(capacityByteCount: 16 << 20)
    options.log = { _ in }
    for _ in 0..<4 { expectFailure(.foreignFile, directory.path, options: options) }
    #expect(try Data(contentsOf: data) == before)
  }

  private func makeForeignData(_ path: String) throws {
    let environment = try Environment.open(directory: path, options: Environment.Options(mapByteCount: 1 << 20))
    let table = try environment.table("theirs", key: BytesCodec.self, value: BytesCodec.self)
    try environment.write { (transaction) throws(LMDBError) in _ = try table.put([1], for: [2], in: transaction) }
  }

  @Test("A store whose first opener was killed while he made it is begun anew")
  func killedWhileMade() throws {
    let directory = try emptyDirectory()
    defer { try? FileManager.default.removeItem(at: directory) }  // Its absence fails no test.
    // As far as such an opener came: marker and table, and no format in it.
    try StoreDirectory(path: directory.path, allowsUntrusted: false).mark()
    try makeHalfAStore(directory.path)
    expectFailure(.damaged, directory.path)
    var options = ResponseStore.Options(capacityByteCount: 16 << 20)
    options.log = { _ in }
    let store = try ResponseStore.open(directory: directory.path, options: options)
    #expect(store.checkInvariants() == [])
    store.close()
  }

  private func makeHalfAStore(_ path: String) throws {
    let environment = try Environment.open(directory: path, options: Environment.Options(mapByteCount: 1 << 20))
    _ = try environment.table("meta", key: BytesCodec.self, value: BytesCodec.self)
  }
}
