import CacheModel
import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// A store in its own directory, checked and removed at the end of the test by the suite's trait ``EndsFixtures``.
///
/// The directory is in memory, where syncs cost nothing. ``MappedFileBlocksTests`` and `Scripts/reliability` use disks.
final class StoreFixture {
  let directory: String
  let clock = ManualClock()
  let logged = LogLines()
  private var opened: ResponseStore?
  var store: ResponseStore { opened! }
  var options: ResponseStore.Options
  /// False for a test that corrupts the store and leaves it so.
  var isChecked = true

  init(
    capacity: Int = 16 << 20, background: Bool = false, directory givenDirectory: String? = nil,
    sourceLocation: SourceLocation = #_sourceLocation,
    configure: (inout ResponseStore.Options) -> Void = { _ in }
  ) throws {
    directory = givenDirectory ?? memoryDirectory(for: capacity)
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.clock = { [clock] in clock.now }
    options.runsInBackground = background
    options.log = { [logged] line in logged.append(line) }
    configure(&options)
    self.options = options
    opened = try ResponseStore.open(directory: directory, options: options)
    FixtureScope.atEnd(sourceLocation: sourceLocation) { [self] in
      if isChecked, let opened { #expect(opened.checkInvariants() == [], sourceLocation: sourceLocation) }
      close()
      remove()
    }
  }

  func remove() {
    // Some tests have removed the directory already.
    try? FileManager.default.removeItem(atPath: directory)
  }

  /// Closes the store and releases the data file.
  func close() {
    opened?.close()
    opened = nil
  }

  /// Releases the store without closing it.
  func forget() {
    opened = nil
  }

  func open() throws {
    opened = try ResponseStore.open(directory: directory, options: options)
  }

  func reopen() throws {
    close()
    try open()
  }

  func path(_ name: String) -> String { directory + "/" + name }

  /// The path of a file of the generation in use.
  func dataPath(_ name: String) -> String {
    let file = ResponseStore.dataFile(inDirectory: directory) ?? directory + "/data-1/data.mdb"
    return (file as NSString).deletingLastPathComponent + "/" + name
  }

  func indexByteCount() throws -> Int {
    let attributes = try FileManager.default.attributesOfItem(atPath: dataPath("LMDBURLCache.index"))
    return attributes[.size] as? Int ?? 0
  }

  func key(_ url: String, partition: String = "") -> RequestKey {
    RequestKey(urlString: url, partition: partition)!
  }

  func response(
    _ url: String, body: Data = Data("body".utf8),
    fields: HeaderFields = HeaderFields([("Content-Type", "text/plain")]),
    vary: VaryKey = VaryKey(fields: []), partition: String = ""
  ) -> KeyedResponse {
    KeyedResponse(
      key: key(url, partition: partition),
      response: CacheableResponse(status: 200, fields: fields, body: body, freshness: freshness(), vary: vary))
  }

  func freshness(lifetime: Double = 60) -> FreshnessInfo {
    FreshnessInfo(
      responseTime: clock.now, initialAge: 0, lifetime: lifetime, date: clock.now, staleWhileRevalidate: -1,
      staleIfError: -1, flags: [])
  }

  func body(_ url: String) -> Data? {
    store.lookup(key(url))?.body
  }

  func drain() {
    while store.writePending() {}
    while store.maintain() {}
  }

  /// Flushes. On a busy machine, a short stall timeout can end a flush; it is then repeated.
  func flush() throws(StoreError) {
    while true {
      do throws(StoreError) {
        return try store.flush()
      } catch {
        guard error.code == .busy else { throw error }
      }
    }
  }

  /// Sets the capacity, and waits until it is applied, even if a short stall timeout ends the setter.
  func setCapacity(_ byteCount: Int) {
    store.capacityByteCount = byteCount
    waitUntil { !store.isApplyingCapacity }
  }
}

/// Returns bytes that are not aligned to any page boundary, the same for the same seed.
func pseudorandomData(_ count: Int, seed: UInt64) -> Data {
  var random = SeededGenerator(seed: seed)
  let start = Int(random.next() % UInt64(bytePool.count))
  var data = withUnsafeBytes(of: seed) { Data($0) }
  while data.count < count {
    let from = data.count == 8 ? start : 0
    data.append(bytePool[from..<min(bytePool.count, from + count - data.count)])
  }
  return data.prefix(count)
}

/// A megabyte to copy from: generating random bytes is slow in debug builds.
private let bytePool: Data = {
  var random = SeededGenerator(seed: 42)
  let words = (0..<(1 << 17)).map { _ in random.next() }
  return words.withUnsafeBytes { Data($0) }
}()
