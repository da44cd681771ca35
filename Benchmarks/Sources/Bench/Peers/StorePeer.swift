import Foundation
import HTTPCaching
import ResponseStore

/// This project's store, through its own interface. A read copies head and body into memory of the response's own, and
/// takes the status and the body's bytes; header fields are decoded, and a `Data` made of the body, only where a measure
/// says so.
final class StorePeer: Peer {
  static let name = "ResponseStore"

  let fixture: Fixture
  let folder: String
  private(set) var store: ResponseStore
  /// Made once, as a caller that asks again for the same URL would; making one is measured by itself.
  let keys: [RequestKey]

  convenience init(folder: String, fixture: Fixture) throws {
    try self.init(folder: folder, fixture: fixture, verifiesEveryRead: false)
  }

  init(folder: String, fixture: Fixture, verifiesEveryRead: Bool, capacityByteCount: Int? = nil) throws {
    self.fixture = fixture
    self.folder = folder
    keys = (0..<fixture.count).map { fixture.key($0) }
    store = try Self.open(
      folder, capacityByteCount: capacityByteCount ?? Self.capacity(fixture), verifiesEveryRead: verifiesEveryRead)
  }

  /// Room for everything, so that nothing is evicted.
  static func capacity(_ fixture: Fixture) -> Int {
    max(256 << 20, fixture.count * (fixture.bodyByteCount + 4096) * 2)
  }

  static func open(_ folder: String, capacityByteCount: Int, verifiesEveryRead: Bool = false) throws -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: capacityByteCount)
    options.verifiesEveryRead = verifiesEveryRead
    options.fullQueueTimeout = .seconds(600)
    return try ResponseStore.open(directory: folder, options: options)
  }

  func store(_ range: Range<Int>) throws {
    for index in range { store.store(fixture.response(index)) }
    try store.flush()
  }

  func reopen() throws {
    store.close()
    store = try Self.open(folder, capacityByteCount: Self.capacity(fixture))
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      guard let response = store.lookup(keys[Int(pick)]), response.status == 200 else { return 0 }
      sum &+= response.withBodyBytes { $0.byteCount }
    }
    return sum
  }

  /// As ``read(_:)``, with the body as a `Data`.
  func readAsData(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      guard let response = store.lookup(keys[Int(pick)]), response.status == 200 else { return 0 }
      sum &+= response.body.count
    }
    return sum
  }

  /// Without a copy: status, and one byte of each piece of the body.
  func readBorrowed(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      let found = store.withResponse(keys[Int(pick)]) { response in
        response.forEachPiece { sum &+= Int($0.unsafeLoad(fromByteOffset: 0, as: UInt8.self)) &+ 1 }
        return response.status
      }
      guard found == 200 else { return 0 }
    }
    return sum
  }

  /// As ``read(_:)``, with a key made of each URL, and all header fields decoded.
  func readDecoding(_ urls: [String], _ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      guard let key = RequestKey(urlString: urls[Int(pick)]), let response = store.lookup(key) else { return 0 }
      sum &+= response.withBodyBytes { $0.byteCount } &+ response.fields.count
    }
    return sum
  }

  func body(_ index: Int) -> Data? { store.lookup(keys[index])?.body }

  func close() { store.close() }
}
