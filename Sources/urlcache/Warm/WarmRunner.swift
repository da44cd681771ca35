import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import Synchronization

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
    let received = ReceivedBytes()
    // Nil from a timer, which refreshes the bar while long bodies arrive.
    await withTaskGroup(of: (Int, WarmTally.Outcome)?.self) { group in
      var next = start
      var runningCount = 0
      func addTimer() {
        group.addTask {
          // Cancellation ends the wait, and then the run.
          try? await clock.sleep(for: .milliseconds(250))
          return nil
        }
      }
      addTimer()
      defer { group.cancelAll() }
      while true {
        while runningCount < jobCount, next < requests.count, !Task.isCancelled {
          if let rate {
            // Cancellation ends the wait, and the loop.
            try? await clock.sleep(until: begin + .seconds(Double(next - start) / Double(rate)))
            if Task.isCancelled { break }
          }
          group.addTask { [index = next] in (index, await load(requests[index], received)) }
          next += 1
          runningCount += 1
        }
        guard runningCount > 0, let finished = await group.next() else { return }
        if let (index, outcome) = finished {
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
        } else if !Task.isCancelled {
          addTimer()
        }
        let seconds = (clock.now - begin) / .seconds(1)
        bar.update(
          done: start + tally.doneCount, total: requests.count,
          note: note(tally.doneCount, start, seconds, received.count))
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

  /// Formats the rate, the time left, and the bytes that have arrived.
  private func note(_ doneCount: Int, _ start: Int, _ seconds: Double, _ byteCount: Int) -> String {
    let bytes = byteCount > 0 ? ", \(Format.bytes(byteCount))" : ""
    guard seconds > 0, doneCount > 0 else { return bytes }
    let rate = Double(doneCount) / seconds
    let left = Double(requests.count - start - doneCount) / rate
    return " \(Format.count(Int(rate.rounded())))/s, \(Format.duration(left)) left\(bytes)"
  }

  private func load(_ warmRequest: WarmRequest, _ received: ReceivedBytes) async -> WarmTally.Outcome {
    guard let url = URL(string: warmRequest.url), url.isHTTPWithHost else {
      return .failed("This is not an http or https URL with a host")
    }
    var request = URLRequest(url: url)
    request.cachePolicy = policy
    for (name, value) in warmRequest.fields { request.addValue(value, forHTTPHeaderField: name) }
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    do {
      let result = try await cache.warm(request) { received.add($0) }
      switch result.source {
      case .hit, .stale: return .loaded(result, .fresh)
      case .revalidated: return .loaded(result, .revalidated)
      case .miss, .coalesced: return .loaded(result, .fetched)
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

/// The bytes of bodies that have arrived, of all loads.
private final class ReceivedBytes: Sendable {
  private let bytes = Atomic(0)
  var count: Int { bytes.load(ordering: .relaxed) }

  func add(_ count: Int) { bytes.add(count, ordering: .relaxed) }
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
