import Foundation
import Glibc
import HTTPCaching
import ResponseStore

/// Runs a trace through a store on the disk, with bodies of the traced sizes: each request is a lookup, and a store after a
/// miss. Threads, queue, pages and indexes are the real ones; the capacity is the directory's.
struct WholeStore {
  let trace: Trace
  let capacityByteCount: Int
  let directory: String

  /// Restarts in the middle: the store is closed and opened anew.
  func replay(as policy: String, restartsHalfway: Bool = false) throws -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: policy, capacityByteCount: capacityByteCount)
    var store = try open(capacityByteCount: capacityByteCount)
    var refusedStores = 0
    for (number, request) in trace.requests.enumerated() {
      if restartsHalfway, number == trace.requests.count / 2 {
        try store.flush()
        refusedStores += store.statistics.droppedStores
        store.close()
        store = try open(capacityByteCount: capacityByteCount)
      }
      try serve(request, from: store, &outcome)
    }
    try store.flush()
    outcome.refusedStores = refusedStores + store.statistics.droppedStores
    if store.diskByteCount > capacityByteCount + capacityByteCount / 10 {
      throw ReplayError("the directory takes \(store.diskByteCount) bytes")
    }
    store.close()
    return outcome
  }

  /// What the store takes on the disk with every object of the trace, nothing evicted.
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

  /// The part of one of several processes that share the directory: every `count`th request. In step, a byte on standard
  /// input lets it serve one, and a byte on standard output says that it is done and what was stored is there for all.
  func replay(part: Int, of count: Int, inStep: Bool) throws -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: "part", capacityByteCount: capacityByteCount)
    let store = try open(capacityByteCount: capacityByteCount)
    var byte: UInt8 = 0
    for number in stride(from: part, to: trace.requests.count, by: count) {
      if inStep, read(STDIN_FILENO, &byte, 1) != 1 { throw ReplayError("no word from the first process") }
      let isStored = try serve(trace.requests[number], from: store, &outcome)
      guard inStep else { continue }
      if isStored { try store.flush() }
      if write(STDOUT_FILENO, &byte, 1) != 1 { throw ReplayError("the first process is gone") }
    }
    try store.flush()
    outcome.refusedStores = store.statistics.droppedStores
    store.close()
    return outcome
  }

  /// Several processes, each started from this executable: all as fast as they can, or in step, as in the trace's own time:
  /// each request when the one before it is served, and stored if it was a miss.
  func replay(processCount: Int, path: String, inStep: Bool) throws -> Outcome {
    let parts = try (0..<processCount).map { part -> (process: Process, input: Pipe, output: Pipe) in
      let process = Process()
      process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
      process.arguments = [
        path, "--capacity", String(capacityByteCount), inStep ? "--part-in-step" : "--part", "\(part)/\(processCount)",
        directory,
      ]
      let (input, output) = (Pipe(), Pipe())
      process.standardInput = input
      process.standardOutput = output
      try process.run()
      return (process, input, output)
    }
    if inStep {
      var byte: UInt8 = 0
      for number in trace.requests.indices {
        let part = parts[number % processCount]
        guard write(part.input.fileHandleForWriting.fileDescriptor, &byte, 1) == 1,
          read(part.output.fileHandleForReading.fileDescriptor, &byte, 1) == 1
        else { throw ReplayError("a process failed") }
      }
    }
    var sum = Outcome(
      trace: trace.name, policy: "\(processCount) processes" + (inStep ? "" : ", fast"),
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
    var options = ResponseStore.Options(capacityByteCount: capacityByteCount)
    // What waits for the writer is found, too: it must not be a second cache.
    options.queueByteCount = max(256 << 10, capacityByteCount / 64)
    options.fullQueueTimeout = .seconds(600)
    return try ResponseStore.open(directory: directory, options: options)
  }

  /// True after a miss, when the response was stored.
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
      NewResponse(
        key: try key(of: request), status: 200,
        fields: HTTPFields([("Content-Type", "image/webp"), ("ETag", "\"\(request.key)\"")]),
        body: Data(count: request.byteCount), facts: Self.facts, vary: VarySelection(selectors: [])))
  }

  private static let facts = FreshnessFacts(
    responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date(), staleWhileRevalidate: -1, staleIfError: -1,
    flags: [.strongETag])
}
