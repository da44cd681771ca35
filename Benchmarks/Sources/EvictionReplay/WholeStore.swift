import Foundation
import HTTPCaching
import ResponseStore

/// Runs a trace through a store on the disk, with bodies of the traced sizes: each request is a lookup, and a store after a
/// miss. Threads, queue, pages and indexes are the real ones; the capacity is the directory's.
struct WholeStore {
  let trace: Trace
  let capacityByteCount: Int
  let directory: String

  /// Restarts in the middle: the store is closed and opened anew.
  func replay(restartsHalfway: Bool = false) throws -> Outcome {
    var outcome = Outcome(
      trace: trace.name, policy: restartsHalfway ? "whole, restarted" : "whole store",
      capacityByteCount: capacityByteCount)
    var store = try open()
    var refusedStores = 0
    for (number, request) in trace.requests.enumerated() {
      if restartsHalfway, number == trace.requests.count / 2 {
        try store.flush()
        refusedStores += store.statistics.droppedStores
        store.close()
        store = try open()
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

  /// The part of one of several processes that share the directory: every `count`th request.
  func replay(part: Int, of count: Int) throws -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: "part", capacityByteCount: capacityByteCount)
    let store = try open()
    for number in stride(from: part, to: trace.requests.count, by: count) {
      try serve(trace.requests[number], from: store, &outcome)
    }
    try store.flush()
    outcome.refusedStores = store.statistics.droppedStores
    store.close()
    return outcome
  }

  /// Several processes at once, each started from this executable.
  func replay(processCount: Int, path: String) throws -> Outcome {
    let processes = try (0..<processCount).map { part -> (Process, Pipe) in
      let process = Process()
      process.executableURL = URL(fileURLWithPath: "/proc/self/exe").resolvingSymlinksInPath()
      process.arguments = [
        path, "--capacity", String(capacityByteCount), "--part", "\(part)/\(processCount)", directory,
      ]
      let pipe = Pipe()
      process.standardOutput = pipe
      try process.run()
      return (process, pipe)
    }
    var sum = Outcome(
      trace: trace.name, policy: "whole, \(processCount) proc.", capacityByteCount: capacityByteCount)
    for (process, pipe) in processes {
      let output = pipe.fileHandleForReading.readDataToEndOfFile()
      process.waitUntilExit()
      let numbers = String(decoding: output, as: UTF8.self).split(whereSeparator: \.isWhitespace).compactMap { Int($0) }
      guard process.terminationStatus == 0, numbers.count == 5 else { throw ReplayError("a process failed") }
      sum.requests += numbers[0]
      sum.hits += numbers[1]
      sum.requestedByteCount += numbers[2]
      sum.hitByteCount += numbers[3]
      sum.refusedStores = (sum.refusedStores ?? 0) + numbers[4]
    }
    return sum
  }

  private func open() throws -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: capacityByteCount)
    // What waits for the writer is found, too: it must not be a second cache.
    options.queueByteCount = max(256 << 10, capacityByteCount / 64)
    options.fullQueueTimeout = .seconds(600)
    return try ResponseStore.open(directory: directory, options: options)
  }

  private func serve(_ request: Trace.Request, from store: ResponseStore, _ outcome: inout Outcome) throws {
    outcome.requests += 1
    outcome.requestedByteCount += request.byteCount
    guard let key = RequestKey(urlString: "http://trace.example/\(request.key)") else {
      throw ReplayError("a URL has no key")
    }
    if let found = store.lookup(key) {
      guard found.body.count == request.byteCount else { throw ReplayError("a body of the wrong size") }
      outcome.hits += 1
      outcome.hitByteCount += request.byteCount
      return
    }
    store.store(
      NewResponse(
        key: key, status: 200, fields: HTTPFields([("Content-Type", "image/webp"), ("ETag", "\"\(request.key)\"")]),
        body: Data(count: request.byteCount), facts: Self.facts, vary: VarySelection(selectors: [])))
  }

  private static let facts = FreshnessFacts(
    responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date(), staleWhileRevalidate: -1, staleIfError: -1,
    flags: [.strongETag])
}
