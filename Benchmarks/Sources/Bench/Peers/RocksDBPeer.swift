import CRocksDB
import Foundation

/// RocksDB through its C interface, with the whole response under the URL.
///
/// Uses Bloom filters, a block cache of 256 MB and pinned reads. Does not compress, as most bodies are compressed
/// already.
final class RocksDBPeer: Peer {
  static let name = "RocksDB"

  private let fixture: Fixture
  private let urls: [String]
  private let database: OpaquePointer
  private let readOptions = rocksdb_readoptions_create()
  private let writeOptions = rocksdb_writeoptions_create()
  private let memory: UnsafeMutableRawPointer

  init(folder: String, fixture: Fixture) throws {
    self.fixture = fixture
    urls = (0..<fixture.count).map { fixture.url($0) }
    memory = malloc(fixture.bodyByteCount + 8192)
    let table = rocksdb_block_based_options_create()
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10))
    rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(256 << 20))
    let options = rocksdb_options_create()
    rocksdb_options_set_create_if_missing(options, 1)
    rocksdb_options_set_block_based_table_factory(options, table)
    rocksdb_options_set_compression(options, Int32(rocksdb_no_compression))
    rocksdb_options_set_allow_mmap_reads(options, 1)
    rocksdb_options_increase_parallelism(options, 2)
    rocksdb_options_set_write_buffer_size(options, 64 << 20)
    rocksdb_options_set_max_open_files(options, -1)
    var error: UnsafeMutablePointer<CChar>?
    guard let opened = rocksdb_open(options, folder, &error) else {
      throw BenchError("RocksDB: \(error.map { String(cString: $0) } ?? "does not open")")
    }
    database = opened
  }

  private func check(_ error: UnsafeMutablePointer<CChar>?) throws {
    guard let error else { return }
    defer { rocksdb_free(error) }
    throw BenchError("RocksDB: \(String(cString: error))")
  }

  func store(_ range: Range<Int>) throws {
    let group = max(1, min(256, (4 << 20) / fixture.bodyByteCount))
    var start = range.lowerBound
    while start < range.upperBound {
      let end = min(start + group, range.upperBound)
      try storeGroup(start..<end, synced: false)
      start = end
    }
    rocksdb_compact_range(database, nil, 0, nil, 0)
  }

  /// Writes a batch: under each URL the size of the head, the head and the body.
  func storeGroup(_ range: Range<Int>, synced: Bool) throws {
    rocksdb_writeoptions_set_sync(writeOptions, synced ? 1 : 0)
    let batch = rocksdb_writebatch_create()
    defer { rocksdb_writebatch_destroy(batch) }
    for index in range {
      let head = fixture.head(index)
      var value = withUnsafeBytes(of: UInt32(head.count)) { Data($0) }
      value.append(contentsOf: head)
      value.append(fixture.body(index))
      withKey(index) { key, count in
        value.withUnsafeBytes { value in
          rocksdb_writebatch_put(
            batch, key, count, value.baseAddress?.assumingMemoryBound(to: CChar.self), value.count)
        }
      }
    }
    var error: UnsafeMutablePointer<CChar>?
    rocksdb_write(database, writeOptions, batch, &error)
    try check(error)
  }

  private func withKey<R>(_ index: Int, _ body: (UnsafePointer<CChar>?, Int) -> R) -> R {
    var url = urls[index]
    return url.withUTF8 { utf8 in utf8.withMemoryRebound(to: CChar.self) { body($0.baseAddress, $0.count) } }
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      let count = copy(Int(pick))
      guard count > 0 else { return 0 }
      sum &+= count - 4 - Int(memory.load(as: UInt32.self))
    }
    return sum
  }

  /// Copies a value and returns its size, or 0 on a miss.
  private func copy(_ index: Int) -> Int {
    var error: UnsafeMutablePointer<CChar>?
    let slice = withKey(index) { rocksdb_get_pinned(database, readOptions, $0, $1, &error) }
    guard let slice else { return 0 }
    defer { rocksdb_pinnableslice_destroy(slice) }
    var count = 0
    guard let value = rocksdb_pinnableslice_value(slice, &count) else { return 0 }
    memcpy(memory, value, count)
    return count
  }

  func body(_ index: Int) -> Data? {
    let count = copy(index)
    guard count > 0 else { return nil }
    let start = 4 + Int(memory.load(as: UInt32.self))
    return Data(bytes: memory + start, count: count - start)
  }

  /// Removes entries with adjacent keys by one range tombstone.
  func remove(_ range: Range<Int>) throws {
    let batch = rocksdb_writebatch_create()
    defer { rocksdb_writebatch_destroy(batch) }
    // The range excludes its end, so the last key is deleted separately.
    withKey(range.lowerBound) { first, firstCount in
      withKey(range.upperBound - 1) { last, lastCount in
        rocksdb_writebatch_delete_range(batch, first, firstCount, last, lastCount)
        rocksdb_writebatch_delete(batch, last, lastCount)
      }
    }
    rocksdb_writeoptions_set_sync(writeOptions, 1)
    var error: UnsafeMutablePointer<CChar>?
    rocksdb_write(database, writeOptions, batch, &error)
    try check(error)
  }

  /// Removes entries with scattered keys one by one, in one batch.
  func removeEach(_ range: Range<Int>) throws {
    let batch = rocksdb_writebatch_create()
    defer { rocksdb_writebatch_destroy(batch) }
    for index in range { withKey(index) { rocksdb_writebatch_delete(batch, $0, $1) } }
    rocksdb_writeoptions_set_sync(writeOptions, 1)
    var error: UnsafeMutablePointer<CChar>?
    rocksdb_write(database, writeOptions, batch, &error)
    try check(error)
  }

  func close() {
    rocksdb_close(database)
    rocksdb_readoptions_destroy(readOptions)
    rocksdb_writeoptions_destroy(writeOptions)
    free(memory)
  }
}
