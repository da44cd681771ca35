import Foundation
import Glibc
import HTTPCaching
import ResponseStore

/// Replays a trace through a store on disk, with bodies of the traced sizes.
///
/// Each request is a lookup, and a write after a miss. The capacity is that of the directory, with all overhead.
struct FullStoreReplay {
  let trace: Trace
  let capacityByteCount: Int
  let directory: String

  /// Replays the trace in this process.
  ///
  /// - Parameter restartsHalfway: Whether to close and reopen the store in the middle of the trace.
  func replay(as policy: String, restartsHalfway: Bool = false) throws -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: policy, capacityByteCount: capacityByteCount)
    var store = try open(capacityByteCount: capacityByteCount)
    var refusedStores = 0
    for (number, request) in trace.requests.enumerated() {
      if restartsHalfway, number == trace.requests.count / 2 {
        try store.flush()
        refusedStores += store.statistics.droppedWrites
        store.close()
        store = try open(capacityByteCount: capacityByteCount)
      }
      try serve(request, from: store, &outcome)
    }
    try store.flush()
    outcome.refusedStores = refusedStores + store.statistics.droppedWrites
    if store.diskByteCount > capacityByteCount + capacityByteCount / 10 {
      throw ReplayError("the directory takes \(store.diskByteCount) bytes")
    }
    store.close()
    return outcome
  }

  /// Returns the disk usage of a store with every object of the trace.
  func footprint() throws -> Int {
    let store = try open(capacityByteCount: trace.footprint * 2 + (256 << 20))
    var seen: Set<UInt64> = []
    for request in trace.requests where seen.insert(request.key).inserted { try put(request, into: store) }
    try store.flush()
    guard store.statistics.entryCount == seen.count else { throw ReplayError("not everything was stored") }
    let byteCount = store.diskByteCount
    store.close()
    return byteCount
  }

  // MARK: Several processes

  /// Replays the part of one of several processes that share the directory: every `count`th request.
  ///
  /// - Parameter waitsForCommit: Whether to wait for a byte on standard input before each request, and to send one on
  ///   standard output when a stored response is committed.
  func replay(part: Int, of count: Int, waitsForCommit: Bool) throws -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: "part", capacityByteCount: capacityByteCount)
    let store = try open(capacityByteCount: capacityByteCount)
    var byte: UInt8 = 0
    for number in stride(from: part, to: trace.requests.count, by: count) {
      if waitsForCommit, read(STDIN_FILENO, &byte, 1) != 1 { throw ReplayError("no byte from the first process") }
      let isStored = try serve(trace.requests[number], from: store, &outcome)
      guard waitsForCommit else { continue }
      if isStored { try store.flush() }
      if write(STDOUT_FILENO, &byte, 1) != 1 { throw ReplayError("the first process has ended") }
    }
    try store.flush()
    outcome.refusedStores = store.statistics.droppedWrites
    store.close()
    return outcome
  }

  /// Replays the trace in several processes, each started from this executable.
  ///
  /// - Parameter waitsForCommit: Whether each request waits until the one before is served and its response committed.
  ///   Otherwise the processes run unthrottled.
  func replay(processCount: Int, path: String, waitsForCommit: Bool) throws -> Outcome {
    let parts = try (0..<processCount).map { part -> (process: Process, input: Pipe, output: Pipe) in
      let process = Process()
      process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
      process.arguments = [
        path, "--capacity", String(capacityByteCount), waitsForCommit ? "--part-in-step" : "--part",
        "\(part)/\(processCount)", directory,
      ]
      let (input, output) = (Pipe(), Pipe())
      process.standardInput = input
      process.standardOutput = output
      try process.run()
      return (process, input, output)
    }
    if waitsForCommit {
      var byte: UInt8 = 0
      for number in trace.requests.indices {
        let part = parts[number % processCount]
        guard write(part.input.fileHandleForWriting.fileDescriptor, &byte, 1) == 1,
          read(part.output.fileHandleForReading.fileDescriptor, &byte, 1) == 1
        else { throw ReplayError("a process failed") }
      }
    }
    var sum = Outcome(
      trace: trace.name, policy: "\(processCount) processes" + (waitsForCommit ? "" : ", fast"),
      capacityByteCount: capacityByteCount)
    for part in parts {
      let output = part.output.fileHandleForReading.readDataToEndOfFile()
      part.process.waitUntilExit()
      let numbers = String(decoding: output, as: UTF8.self).split(whereSeparator: \.isWhitespace).compactMap { Int($0) }
      guard part.process.terminationStatus == 0, numbers.count == 5 else { throw ReplayError("a process failed") }
      sum.requests += numbers[0]
      sum.hits += numbers[1]
      sum.requestedByteCount += numbers[2]
      sum.hitByteCount += numbers[3]
      sum.refusedStores = (sum.refusedStores ?? 0) + numbers[4]
    }
    return sum
  }

  // MARK: One request

  private func open(capacityByteCount: Int) throws -> ResponseStore {
    let minimum = ResponseStore.minimumCapacityByteCount
    guard capacityByteCount >= minimum else {
      throw ReplayError("a capacity of \(capacityByteCount) bytes is below the minimum of \(minimum) bytes")
    }
    var options = ResponseStore.Options(capacityByteCount: capacityByteCount)
    // Pending writes are found, too: keep the queue small, so that it is not a second cache.
    options.queueByteCount = max(256 << 10, capacityByteCount / 64)
    options.fullQueueTimeout = .seconds(600)
    return try ResponseStore.open(directory: directory, options: options)
  }

  /// Looks a request up and stores its response after a miss; returns whether the response was stored.
  @discardableResult
  private func serve(
    _ request: Trace.Request, from store: ResponseStore, _ outcome: inout Outcome
  ) throws -> Bool {
    outcome.requests += 1
    outcome.requestedByteCount += request.byteCount
    if let found = store.lookup(try key(of: request)) {
      guard found.body.count == request.byteCount else { throw ReplayError("a body of the wrong size") }
      outcome.hits += 1
      outcome.hitByteCount += request.byteCount
      return false
    }
    try put(request, into: store)
    return true
  }

  private func key(of request: Trace.Request) throws -> RequestKey {
    guard let key = RequestKey(urlString: "http://trace.example/\(request.key)") else {
      throw ReplayError("a URL has no key")
    }
    return key
  }

  private func put(_ request: Trace.Request, into store: ResponseStore) throws {
    store.store(
      CacheableResponse(
        status: 200, fields: HeaderFields([("Content-Type", "image/webp"), ("ETag", "\"\(request.key)\"")]),
        body: Data(count: request.byteCount), freshness: Self.freshness, vary: VaryKey(fields: [])),
      for: try key(of: request))
  }

  private static let freshness = FreshnessInfo(
    responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date(), staleWhileRevalidate: -1, staleIfError: -1,
    flags: [.strongETag])
}
