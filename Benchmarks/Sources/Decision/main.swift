import CAllocationCounter
import FoundationEssentials
import Glibc
import HTTPCaching

// Counts the allocations of the decision on a fresh hit, and fails if there are more than two for one decision.
//
// The process's own `malloc` stands before the C library's, so every object, array and string is counted. There is one
// thread, so the numbers are exact and the same in every run.

private struct Hit: StoredResponseView {
  let status = 200
  let facts: FreshnessFacts
  let fields: HTTPFields
  let bodyByteCount = 11
}

private let now = Date(timeIntervalSince1970: 1_800_000_000)
private let url = URL(string: "https://example.com/a?b=1")!
private let plain: HTTPFields = [
  "Accept": "*/*", "Accept-Encoding": "gzip, deflate", "Accept-Language": "en", "Host": "example.com",
  "User-Agent": "a test with a name that is longer than a small string",
]
private var demanding = plain
demanding.append(name: "Cache-Control", value: "max-age=600, min-fresh=5")

private let response = ResponseHead(
  status: 200,
  fields: [
    "Date": "Fri, 15 Jan 2027 08:00:00 GMT", "Cache-Control": "public, max-age=3600, stale-while-revalidate=60",
    "ETag": "\"0123456789abcdef0123456789abcdef\"", "Content-Type": "application/json", "Vary": "Accept-Encoding",
  ])

guard
  case .store(let fields, let facts) = Storability.decide(
    request: RequestHead(url: url, fields: plain), response: response, requestTime: now, responseTime: now,
    options: CachingOptions())
else { fatalError("The response is one that every cache stores") }

private let rounds = 1000

/// The allocations of one decision, and whether it was to serve.
@MainActor
private func measure(_ request: RequestHead) -> (perDecision: Double, isServed: Bool) {
  let hit = Hit(facts: facts, fields: fields)
  let later = now.addingTimeInterval(5)
  let options = CachingOptions()
  var served = 0
  let before = allocation_count()
  for _ in 0..<rounds {
    if case .serve = Reuse.decide(
      request: request, stored: hit, policy: .useProtocolCachePolicy, now: later, options: options)
    {
      served += 1
    }
  }
  return (Double(allocation_count() - before) / Double(rounds), served == rounds)
}

/// Reports one decision, and whether it keeps within its bound.
@MainActor
private func report(_ name: String, _ request: RequestHead, bound: Double?) -> Bool {
  // The first round makes what is made once.
  _ = measure(request)
  let result = measure(request)
  guard result.isServed else { fatalError("\(name): not served") }
  print("\(name): \(result.perDecision) allocations" + (bound.map { ", at most \($0) are allowed" } ?? ""))
  return bound.map { result.perDecision <= $0 } ?? true
}

private let results = [
  report("fresh hit", RequestHead(url: url, fields: plain), bound: 2),
  report("fresh hit with request directives", RequestHead(url: url, fields: demanding), bound: nil),
]
exit(results.allSatisfy { $0 } ? 0 : 1)
