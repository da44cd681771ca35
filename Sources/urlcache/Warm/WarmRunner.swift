import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// Loads the requests of a list, several at a time.
struct WarmRunner {
  let cache: LMDBURLCache
  let requests: [WarmRequest]
  /// Header fields for each request, which replace those of a HAR file.
  let fields: [(name: String, value: String)]
  let policy: URLRequest.CachePolicy
  /// The maximum number of loads at a time.
  let jobCount: Int
  /// The maximum number of loads that begin in a second; nil for no limit.
  let rate: Int?
  let checkpoint: WarmCheckpoint

  /// The number of failures that are printed.
  private static let printedFailureCount = 20
  private static let saveInterval = Duration.seconds(1)

  /// Loads the requests from a position on. Returns when all are done, or soon after the task was cancelled.
  ///
  /// - Returns: The results, and whether all requests were completed.
  func run(from start: Int) async -> (tally: WarmTally, isComplete: Bool) {
    var tally = WarmTally()
    var bar = ProgressBar("Warming")
    let clock = ContinuousClock()
    let begin = clock.now
    var nextSave = begin + Self.saveInterval
    var done = CompletedPrefix(count: start)
    var printedCount = 0
    await withTaskGroup(of: (Int, WarmTally.Outcome).self) { group in
      var next = start
      var runningCount = 0
      while true {
        while runningCount < jobCount, next < requests.count, !Task.isCancelled {
          if let rate {
            // Cancellation ends the wait, and the loop.
            try? await clock.sleep(until: begin + .seconds(Double(next - start) / Double(rate)))
            if Task.isCancelled { break }
          }
          group.addTask { [index = next] in (index, await load(requests[index])) }
          next += 1
          runningCount += 1
        }
        guard let (index, outcome) = await group.next() else { return }
        runningCount -= 1
        tally.add(outcome)
        if case .cancelled = outcome { continue }
        done.insert(index)
        if case .failed(let reason) = outcome {
          printedCount += 1
          bar.hide()
          if printedCount <= Self.printedFailureCount {
            Output.error("urlcache warm: \(Format.shortened(Format.withoutUser(requests[index].url))): \(reason).\n")
          }
        }
        let seconds = (clock.now - begin) / .seconds(1)
        bar.update(done: start + tally.doneCount, total: requests.count, note: note(tally.doneCount, start, seconds))
        if clock.now >= nextSave {
          nextSave = clock.now + Self.saveInterval
          checkpoint.save(doneCount: done.count, now: Date())
        }
      }
    }
    bar.end()
    if printedCount > Self.printedFailureCount {
      Output.error("urlcache warm: \(Format.count(printedCount - Self.printedFailureCount)) more failed.\n")
    }
    let isComplete = done.count == requests.count
    if isComplete { checkpoint.remove() } else { checkpoint.save(doneCount: done.count, now: Date()) }
    return (tally, isComplete)
  }

  /// Formats the rate and the time left.
  private func note(_ doneCount: Int, _ start: Int, _ seconds: Double) -> String {
    guard seconds > 0, doneCount > 0 else { return "" }
    let rate = Double(doneCount) / seconds
    let left = Double(requests.count - start - doneCount) / rate
    return " \(Format.count(Int(rate.rounded())))/s, \(Format.duration(left)) left"
  }

  private func load(_ warmRequest: WarmRequest) async -> WarmTally.Outcome {
    guard let url = URL(string: warmRequest.url), url.isHTTPWithHost else {
      return .failed("This is not an http or https URL with a host")
    }
    var request = URLRequest(url: url)
    request.cachePolicy = policy
    for (name, value) in warmRequest.fields { request.addValue(value, forHTTPHeaderField: name) }
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    do {
      let result = try await cache.warm(request)
      switch result.source {
      case .store, .staleStore: return .loaded(result, .fresh)
      case .revalidated: return .loaded(result, .validated)
      case .network, .coalesced: return .loaded(result, .fetched)
      // The response is as old as before.
      case .staleOnError: return .failed("The origin failed; a stale response was served")
      case .unavailable: return .failed("No response is stored, and the request forbids a fetch")
      }
    } catch let error as URLError {
      return Task.isCancelled ? .cancelled : .failed(CacheAccess.sentence(for: error))
    } catch {
      return Task.isCancelled ? .cancelled : .failed("\(error)")
    }
  }
}

/// The number of requests that are completed without a gap from the first one on.
private struct CompletedPrefix {
  private(set) var count: Int
  private var others: Set<Int> = []

  init(count: Int) { self.count = count }

  mutating func insert(_ index: Int) {
    others.insert(index)
    while others.remove(count) != nil { count += 1 }
  }
}
