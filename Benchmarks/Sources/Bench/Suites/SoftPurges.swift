import Foundation
import ResponseStore

/// Soft purges while a thread stores at full speed. `Scripts/reliability purge` counts the validations afterwards.
struct SoftPurges {
  let report: Report
  let scratch: Scratch

  func run(_ fixture: Fixture) throws {
    var options = ResponseStore.Options(capacityByteCount: StorePeer.capacity(fixture))
    options.fullQueueTimeout = .seconds(600)
    let store = try ResponseStore.open(directory: scratch.folder("purge"), options: options)
    defer { store.close() }
    for index in 0..<fixture.count { store.store(fixture.response(index)) }
    try store.flush()
    try measure(store, fixture)
  }

  /// Measures median and p99 of each kind of purge until the call returns.
  private func measure(_ store: ResponseStore, _ fixture: Fixture) throws {
    let stop = StopFlag()
    let ended = DispatchSemaphore(value: 0)
    let writer = Thread {
      var index = 0
      while !stop.isSet {
        store.store(fixture.response(index % fixture.count))
        index += 1
      }
      ended.signal()
    }
    writer.start()
    defer {
      stop.set()
      ended.wait()
    }
    guard let prefix = URL(string: "http://assets.example.com/images/00000000"),
      let origin = URL(string: "http://assets.example.com/")
    else { fatalError("a URL is invalid") }
    let date = Date()
    let scopes: [(String, RemovalScope?)] = [
      ("one key", .key(fixture.key(7).bytes)), ("since", .since(date)), ("group", .group("g", ofOrigin: origin)),
      ("prefix", .urlPrefix(prefix)), ("host", .host("assets.example.com")), ("all", .everything),
    ]
    for (name, scope) in scopes {
      guard let scope else { throw BenchError("there is no scope \(name)") }
      var samples = (0..<(report.isQuick ? 10 : 100)).map { _ in nanoseconds { store.softPurge(scope) } / 1e6 }
      samples.sort()
      for share in [0.5, 0.99] {
        report.add(
          "purge", "soft, \(name), p\(Int(share * 100))", fixture.name, "ResponseStore, during writes", unit: "ms",
          [percentile(samples, share)])
      }
    }
  }
}
