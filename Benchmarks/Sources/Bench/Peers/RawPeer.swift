import CRawLMDB
import Foundation

/// The C baseline on a copy of the store's data file.
///
/// Makes the lookups of a store's hit, each by `mdb_get`, and copies the bytes:
/// - the row ID in a table `keys`, which replaces the store's index file;
/// - the record header in the table of its band, with the body if it is small;
/// - each chunk of a larger body in `bodies`.
///
/// Each hit renews and resets a transaction.
final class RawPeer {
  private let store: OpaquePointer
  let keys: KeyBytes

  /// Opens a copy of a store's data file.
  ///
  /// - Parameters:
  ///   - source: The folder of the store, which must be closed or idle.
  ///   - folder: The folder for the copy.
  init(copying source: String, to folder: String, keys: KeyBytes) throws {
    self.keys = keys
    try FileManager.default.copyItem(atPath: source + "/data-1/data.mdb", toPath: folder + "/data.mdb")
    guard let store = raw_open(folder, 0) else { throw BenchError("the copy of the store does not open") }
    self.store = store
  }

  func benchmarkCase(_ name: String, _ picks: [[UInt32]], _ copies: raw_copies, threads: Int = 1) -> BenchmarkCase {
    BenchmarkCase(name: name, operations: picks[0].count, threads: threads) { [self] thread, round in
      let mine = picks[(thread + round) % picks.count]
      let total = keys.withPointers { raw_read(store, $0, mine, mine.count, copies) }
      guard total > 0 else { fatalError("\(name) missed") }
    }
  }

  func close() { raw_close(store) }
}

/// The minimum in C: one `mdb_get` and one `memcpy` on a table with the record under the URL.
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

  func benchmarkCase(_ name: String, _ picks: [[UInt32]], threads: Int = 1) -> BenchmarkCase {
    BenchmarkCase(name: name, operations: picks[0].count, threads: threads) { [self] thread, round in
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
