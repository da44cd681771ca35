import Foundation
import HTTPCaching
import ResponseStore

/// This project's store.
///
/// A read copies header and body, and uses the status and the bytes of the body. Only the cases that say so decode the
/// fields or create a `Data`.
final class StorePeer: Peer {
  static let name = "ResponseStore"

  let fixture: Fixture
  let folder: String
  private(set) var store: ResponseStore
  /// The keys, created in advance; a separate case includes their creation.
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

  /// Returns a capacity that is large enough to evict nothing.
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

  /// Like ``read(_:)``, with the body as a `Data`.
  func readAsData(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      guard let response = store.lookup(keys[Int(pick)]), response.status == 200 else { return 0 }
      sum &+= response.body.count
    }
    return sum
  }

  /// Reads the status and one byte of each body chunk without a copy.
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

  /// Like ``read(_:)``, with a key created from each URL, and with all header fields decoded.
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
