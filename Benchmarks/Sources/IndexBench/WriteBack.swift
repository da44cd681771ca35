import Glibc

/// Measures the bytes that the kernel writes for the index file while random cells change.
///
/// The file must be on a disk of its own, because only the disk's counter gives the bytes; see `Benchmarks/NOTES.md`.
struct WriteBack {
  let directory: String
  /// The name of the disk in `/sys/block`.
  let disk: String
  let recordCount: Int
  let storesPerSecond: Int
  let hitsPerSecond: Int

  func run(seconds: Double) {
    let file = IndexFile(path: directory + "/" + IndexLayout.fileName, owner: 1)
    var rows = IndexFiller(file: file)
    rows.fill(recordCount)
    sync()
    guard let index = file.current else { fatalError("no index") }
    let start = now()
    let written = writtenByteCount(onDisk: disk)
    var random = SystemRandomNumberGenerator()
    var (stores, hits, next) = (0, 0, start + 30)
    func report() {
      let byteCount = writtenByteCount(onDisk: disk) - written
      let changes = max(stores + hits, 1)
      print(
        "writeback \(recordCount) records, file \(index.byteCount >> 20) MiB, \(storesPerSecond) stores/s, \(hitsPerSecond) hits/s: "
          + "\(Int(now() - start)) s, \(byteCount >> 20) MiB written, \(byteCount / changes) bytes a store or hit"
      )
      fflush(nil)
    }
    while now() - start < seconds {
      usleep(100_000)
      let elapsed = now() - start
      var storeCount = Int(elapsed * Double(storesPerSecond)) - stores
      stores += storeCount
      while storeCount > 0 {
        let count = min(storeCount, 2700)
        rows.replaceAtRandom(count)
        storeCount -= count
      }
      let hitCount = Int(elapsed * Double(hitsPerSecond)) - hits
      hits += hitCount
      // Raise the inflation as evictions do, so that each hit changes its cell.
      index.inflation += 1e-6
      for _ in 0..<hitCount { rows.use(UInt64.random(in: rows.oldest..<rows.next, using: &random)) }
      if now() > next {
        report()
        next += 60
      }
    }
    report()
  }
}

/// Returns the bytes written to a disk since boot, from the kernel's counter.
func writtenByteCount(onDisk disk: String) -> Int {
  guard let stream = fopen("/sys/block/\(disk)/stat", "r") else { return 0 }
  defer { fclose(stream) }
  var line = [CChar](repeating: 0, count: 512)
  guard fgets(&line, CInt(line.count), stream) != nil else { return 0 }
  let text = String(
    decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  let columns = text.split(separator: " ").compactMap { Int($0) }
  return columns.count > 6 ? columns[6] * 512 : 0
}
