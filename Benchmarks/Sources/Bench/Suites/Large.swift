import Foundation

/// A body of 2 GB through a cache of 10 GB on disk: while it arrives, as a hit, and for 100 readers at once.
///
/// Compared with a plain download to a file over the same transport, with nginx's `proxy_cache`, and with reading the
/// file. nginx is the origin and sends the file by `sendfile`. Each measurement has a process of its own, so that its
/// peak memory is its own. All files are on one disk.
struct Large {
  let report: Report
  let scratch: Scratch

  private var byteCount: Int { report.isQuick ? 256_000_000 : 2_000_000_000 }
  private var sharedByteCount: Int { report.isQuick ? 64_000_000 : 1_000_000_000 }
  private var rounds: Int { report.isQuick ? 1 : 3 }

  func run() async throws {
    let folder = try scratch.folder("large")
    let origin = try LargeOrigin(folder: folder, sizes: [byteCount, sharedByteCount])
    defer { origin.stop() }
    try transfers(origin)
    try hits(origin)
    try readers(origin)
  }

  // MARK: Transfers and hits

  private func transfers(_ origin: LargeOrigin) throws {
    let modes: [LargeLoad.Mode] = [.file, .transport, .values, .bytes, .proxy]
    var results: [LargeLoad.Mode: [LargeLoad.Result]] = [:]
    for _ in 0..<rounds {
      for mode in modes { results[mode, default: []].append(try transfer(mode, origin)) }
    }
    let files = results[.file, default: []]
    for mode in modes {
      let own = results[mode, default: []]
      add("transfer", byteCount, mode, own)
      if mode != .file {
        add("transfer, relative to a file", byteCount, mode, "×", zip(own, files).map { $0.rate / $1.rate })
      }
      if mode.isCache { add("stored bodies", byteCount, mode, "%", own.map { $0.isStored ? 100 : 0 }) }
    }
  }

  /// Transfers the body with an empty cache.
  private func transfer(_ mode: LargeLoad.Mode, _ origin: LargeOrigin) throws -> LargeLoad.Result {
    let folder = try scratch.folder("large-cache")
    defer { try? scratch.remove(folder) }
    guard mode == .proxy else { return try LargeLoad.run(mode, origin.url(byteCount), folder, byteCount) }
    let proxy = try LargeProxy(of: origin, folder: folder)
    defer { proxy.stop() }
    var result = try LargeLoad.run(mode, proxy.url(byteCount), folder, byteCount)
    result.peakMegabytes = proxy.peakMegabytes
    result.isStored = try LargeLoad.run(mode, proxy.url(byteCount), folder, byteCount).isStored
    return result
  }

  private func hits(_ origin: LargeOrigin) throws {
    let folder = try scratch.folder("large-cache")
    defer { try? scratch.remove(folder) }
    // A body that comes faster than the disk may not be stored.
    let url = origin.slowedURL(byteCount)
    let stored = try LargeLoad.run(.values, url, folder, byteCount)
    guard stored.isStored else {
      // A slow disk is no error. Without the body there are no hits.
      report.add("large", "stored bodies", scenario(byteCount), "for hits", unit: "%", [0], lessIsBetter: false)
      return
    }
    let modes: [LargeLoad.Mode] = [.readFile, .values, .bytes]
    var results: [LargeLoad.Mode: [LargeLoad.Result]] = [:]
    // The first round reads both into the page cache.
    for round in 0...rounds {
      for mode in modes {
        let result = try LargeLoad.run(
          mode, mode == .readFile ? origin.file(byteCount) : url, folder, byteCount, expectsHit: true)
        if round > 0 { results[mode, default: []].append(result) }
      }
    }
    let files = results[.readFile, default: []]
    for mode in modes {
      let own = results[mode, default: []]
      add("hit", byteCount, mode, own)
      if mode != .readFile {
        add("hit, relative to the file", byteCount, mode, "×", zip(own, files).map { $0.rate / $1.rate })
      }
    }
  }

  // MARK: Readers

  private func readers(_ origin: LargeOrigin) throws {
    var results: [LargeLoad.Result] = []
    var transferCounts: [Double] = []
    for _ in 0..<rounds {
      let folder = try scratch.folder("large-cache")
      let before = try origin.requestCount(sharedByteCount)
      results.append(try LargeLoad.run(.readers, origin.url(sharedByteCount), folder, sharedByteCount))
      transferCounts.append(Double(try origin.requestCount(sharedByteCount) - before))
      try scratch.remove(folder)
    }
    add("100 readers of one transfer", sharedByteCount, .readers, results)
    add("transfers for 100 readers", sharedByteCount, .readers, "requests", transferCounts, lessIsBetter: true)
    add("stored bodies", sharedByteCount, .readers, "%", results.map { $0.isStored ? 100 : 0 })
  }

  // MARK: Rows

  private func scenario(_ byteCount: Int) -> String { "\(byteCount / 1_000_000) MB" }

  private func add(_ measure: String, _ byteCount: Int, _ mode: LargeLoad.Mode, _ results: [LargeLoad.Result]) {
    add(measure, byteCount, mode, "MB per second", results.map(\.rate))
    add(measure + ", processor time", byteCount, mode, "ms", results.map(\.processorMilliseconds), lessIsBetter: true)
    add(
      measure + ", peak memory beyond idle", byteCount, mode, "MB", results.map { $0.peakMegabytes },
      lessIsBetter: true)
  }

  private func add(
    _ measure: String, _ byteCount: Int, _ mode: LargeLoad.Mode, _ unit: String, _ samples: [Double],
    lessIsBetter: Bool = false
  ) {
    report.add(
      "large", measure, scenario(byteCount), mode.rawValue, unit: unit, samples, lessIsBetter: lessIsBetter)
  }
}
