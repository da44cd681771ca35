import CRawLMDB
import Foundation

/// What a loop in C reaches on a copy of the store's file. It does the lookups of a store's hit, each a mdb_get: the key in
/// a table `keys`, which it has in place of the store's index and which gives the row's number, the head in `heads`, which up
/// to 1.9 KB holds the body too, and each chunk of a larger body in `bodies`. Then it copies head and body. One transaction is renewed and reset for each.
final class RawPeer {
  private let store: OpaquePointer
  let keys: KeyBytes

  /// - Parameter folder: gets a copy of the data file of `source`, which must be closed or at rest.
  init(copying source: String, to folder: String, keys: KeyBytes) throws {
    self.keys = keys
    try FileManager.default.copyItem(atPath: source + "/data.mdb", toPath: folder + "/data.mdb")
    guard let store = raw_open(folder, 0) else { throw BenchError("the copy of the store does not open") }
    self.store = store
  }

  func contestant(_ name: String, _ picks: [[UInt32]], _ copies: raw_copies, threads: Int = 1) -> Contestant {
    Contestant(name: name, operations: picks[0].count, threads: threads) { [self] thread, round in
      let mine = picks[(thread + round) % picks.count]
      let total = keys.withPointers { raw_read(store, $0, mine, mine.count, copies) }
      guard total > 0 else { fatalError("\(name) missed") }
    }
  }

  func close() { raw_close(store) }
}

/// One mdb_get and one memcpy: a table with nothing but the record under the URL.
final class PlainPeer {
  private let store: OpaquePointer
  private let keys: KeyBytes

  init(folder: String, fixture: Fixture, keys: KeyBytes) throws {
    self.keys = keys
    let byteCount = fixture.bodyByteCount + fixture.head(0).count
    let mapByteCount = max(64 << 20, fixture.count * (byteCount + 4096) * 2)
    guard let store = raw_plain_open(folder, mapByteCount) else { throw BenchError("the plain table does not open") }
    self.store = store
    guard keys.withPointers({ raw_plain_fill(store, $0, fixture.count, byteCount) }) == 1 else {
      throw BenchError("the plain table could not be filled")
    }
  }

  func contestant(_ name: String, _ picks: [[UInt32]], threads: Int = 1) -> Contestant {
    Contestant(name: name, operations: picks[0].count, threads: threads) { [self] thread, round in
      let mine = picks[(thread + round) % picks.count]
      guard keys.withPointers({ raw_plain_read(store, $0, mine, mine.count) }) > 0 else { fatalError("\(name) missed") }
    }
  }

  func close() { raw_close(store) }
}

extension KeyBytes {
  func withPointers<R>(_ body: (raw_keys) -> R) -> R {
    bytes.withUnsafeBufferPointer { bytes in
      offsets.withUnsafeBufferPointer { offsets in
        body(raw_keys(bytes: bytes.baseAddress, offsets: offsets.baseAddress))
      }
    }
  }
}
