import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin

/// The demonstration: a sequence of phases.
struct Demo {
  static let memoryCapacity = 32 << 20
  static let diskCapacity = 512 << 20
  /// The time by which the clocks are advanced, so that only short-lived responses expire.
  static let step: TimeInterval = 3600

  let files: DemoFiles
  let readerCount: Int
  let directory: TemporaryDirectory
  let progress: DemoProgress
  private let cache: LMDBURLCache
  private let session: URLSession

  init(files: DemoFiles, readerCount: Int, directory: TemporaryDirectory, progress: DemoProgress) throws {
    self.files = files
    self.readerCount = readerCount
    self.directory = directory
    self.progress = progress
    var options = LMDBURLCache.Options()
    options.clock = { [clock = files.clock] in clock.now }
    cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: directory.cachePath), memoryCapacity: Self.memoryCapacity,
      diskCapacity: Self.diskCapacity, options: options)
    session = URLSession(configuration: .default.caching(with: cache))
  }

  func run() async throws -> DemoReport {
    let all = Array(files.files.indices)
    let early = all.filter { !files.late.contains($0) }
    var report = DemoReport(files: files, readerCount: readerCount)

    var first = await read("URLSession, first time", early, Readers.bySession(session))
    let moment = files.clock.now
    first.add(
      await read("URLSession, first time, after the noted moment", files.late.sorted(), Readers.bySession(session)))
    report.add("first time", by: "URLSession", first)
    report.add("again", by: "URLSession", await read("URLSession, again", all, Readers.bySession(session)))
    report.add("as before", by: "data(for:)", await read("data(for:)", all, Readers.byCache(cache)))
    report.add("again", by: "data(for:)", await read("data(for:), again", all, Readers.byCache(cache)))

    report.purge = purge(since: moment)
    report.add(
      "after the purge", by: "URLSession", await read("URLSession, after the purge", all, Readers.bySession(session)))

    files.clock.advance(by: Self.step)
    report.add("an hour later", by: "data(for:)", await read("An hour later", all, Readers.byLoad(cache)))

    report.queries = try await queries()
    guard cache.flush() else { throw ToolError("The stored responses could not be written.") }
    report.originRequestCount = files.origin.origin.requestCount
    files.origin.stop()
    let second = try secondProcess()
    report.add("origin stopped", by: "2nd process", second.measurements)

    report.disk = (cache.currentDiskUsage, cache.statistics.disk?.payloadByteCount ?? 0)
    report.memory = (cache.currentMemoryUsage, ProcessMemory.residentByteCount, second.residentByteCount)
    session.finishTasksAndInvalidate()
    return report
  }

  private func read(_ title: String, _ numbers: [Int], _ load: @escaping Readers.Load) async -> Measurements {
    progress.begin(title, total: numbers.count * readerCount)
    let readers = Readers(count: readerCount, files: files.files) { [progress] in progress.step() }
    let measurements = await readers.readAll(numbers, load)
    let kinds = DemoResponseKind.allCases.filter { measurements.count($0) > 0 }
    progress.end(kinds.map { "\(Format.count(measurements.count($0))) \($0.rawValue)" }.joined(separator: ", "))
    return measurements
  }

  /// Purges the responses stored or updated since a time, and checks which are left.
  private func purge(since moment: Date) -> DemoReport.PurgeResult {
    progress.begin("Purge of everything since the noted moment", total: 0)
    let clock = ContinuousClock()
    let before = files.files.filter { cache.isCached($0.url) }.count
    let start = clock.now
    cache.removeCachedResponses(since: moment)
    let duration = clock.now - start
    var purge = DemoReport.PurgeResult(moment: moment, nanoseconds: Int(duration / .nanoseconds(1)))
    for (number, file) in files.files.enumerated() {
      let isStored = cache.isCached(file.url)
      if isStored { purge.keptCount += 1 }
      if isStored == files.late.contains(number) {
        purge.failures.append("\(file.url) \(isStored ? "is still stored after its purge" : "was purged by mistake")")
      }
    }
    purge.removedCount = before - purge.keptCount
    progress.end("\(Format.count(purge.removedCount)) removed, \(Format.count(purge.keptCount)) kept")
    return purge
  }

  /// Sends queries to an origin of their own.
  private func queries() async throws -> DemoReport.QueryResult {
    progress.begin("QUERY, many contents at one URL", total: 0)
    let origin = try QueryOrigin(clock: { [clock = files.clock] in Int(clock.now.timeIntervalSince1970) })
    defer { origin.stop() }
    let result = try await DemoQueries(origin: origin, cache: cache).run()
    let counts = (miss: result.measurements.count(.miss), hit: result.measurements.count(.hit))
    progress.end("\(Format.count(counts.miss)) miss, \(Format.count(counts.hit)) hit")
    return result
  }

  /// Runs this executable in a second process on the same directory.
  private func secondProcess() throws -> DemoReaderCommand.Result {
    progress.begin("A second process, with the origin stopped", total: 0)
    let order = DemoReaderCommand.Order(
      directory: directory.cachePath, files: files.files, readerCount: readerCount, clockOffset: files.clock.seconds)
    let result = try DemoReaderCommand.runInProcess(order, orderPath: directory.path(of: "order.json"), directory)
    progress.end("\(Format.count(result.measurements.count(.hit))) hit")
    return result
  }
}
