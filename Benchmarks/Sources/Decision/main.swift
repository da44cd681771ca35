import CAllocationCount
import Dispatch
import FoundationEssentials
import Glibc
import HTTPCaching

// Prints the nanoseconds and allocations of the decision on a fresh hit. Fails if a case allocates more than allowed.
//
// The decision matches the stored response's Vary key (and Authorization) with the request, decides whether the
// response can be reused, and computes its age. The freshness is already parsed, as in the store. Allocations are the
// same in every run. Times are the best of several rounds and have no limit.

private struct Hit: StoredResponseMetadata {
  let status = 200
  let freshness: FreshnessInfo
  let fields: HeaderFields
  let bodyByteCount = 11
  let vary: VaryKey
}

private let now = Date(timeIntervalSince1970: 1_800_000_000)
private let url = URL(string: "https://example.com/a?b=1")!
private let plain: HeaderFields = [
  "Accept": "*/*", "Accept-Encoding": "gzip, deflate, br", "Accept-Language": "en", "Host": "example.com",
  "User-Agent": "a test with a name that is longer than a small string",
]

private func request(_ more: (String, String)...) -> RequestHead {
  var fields = plain
  for (name, value) in more { fields.set(name, value) }
  return RequestHead(url: url, fields: fields)
}

/// Returns the response that a store would keep for `request`.
private func stored(_ request: RequestHead, vary names: String?) -> Hit {
  var fields: HeaderFields = [
    "Date": "Fri, 15 Jan 2027 08:00:00 GMT", "Cache-Control": "public, max-age=3600, stale-while-revalidate=60",
    "ETag": "\"0123456789abcdef0123456789abcdef\"", "Content-Type": "application/json",
  ]
  fields["Vary"] = names
  let storability = Storability.decide(
    request: request, response: ResponseHead(status: 200, fields: fields), requestTime: now, responseTime: now,
    options: CachingOptions())
  guard case .store(let kept, let freshness) = storability else {
    fatalError("The response is one that every cache stores")
  }
  return Hit(
    freshness: freshness, fields: kept,
    vary: VaryKey(request: request, response: kept, credentialDigest: { $0 }))
}

private let rounds = 10
private let decisionsPerRound = 100_000

/// Measures and prints one kind of hit.
///
/// - Returns: Whether it allocates at most `allowed` times per decision.
private func report(_ name: String, _ request: RequestHead, vary: String? = nil, allowed: Double?) -> Bool {
  let hit = stored(request, vary: vary)
  let later = now.addingTimeInterval(5)
  let options = CachingOptions()
  var best = UInt64.max
  var allocations = 0.0
  for _ in 0..<rounds {
    var served = 0
    let allocationsBefore = allocation_count()
    let start = DispatchTime.now().uptimeNanoseconds
    for _ in 0..<decisionsPerRound {
      guard hit.vary.matches(request, credentialDigest: { $0 }) else { continue }
      if case .serve = Reuse.decide(
        request: request, stored: hit, policy: .useProtocolCachePolicy, now: later, options: options)
      {
        served += 1
      }
    }
    best = min(best, DispatchTime.now().uptimeNanoseconds - start)
    // Keep the last round's count: the first round includes one-time allocations.
    allocations = Double(allocation_count() - allocationsBefore) / Double(decisionsPerRound)
    guard served == decisionsPerRound else { fatalError("\(name): not served") }
  }
  func padded(_ text: String, _ width: Int) -> String {
    String(repeating: " ", count: max(0, width - text.count)) + text
  }
  let nanoseconds = padded(String(best / UInt64(decisionsPerRound)), 6)
  let count = padded(String((allocations * 10).rounded() / 10), 5)
  print(
    "\(name)\(padded("", 46 - name.count))\(nanoseconds) ns\(count) allocations\(allowed.map { ", at most \($0)" } ?? "")"
  )
  return allowed.map { allocations <= $0 } ?? true
}

private let kept = [
  report("fresh hit", request(), allowed: 2),
  report("with Vary: Accept-Encoding", request(), vary: "Accept-Encoding", allowed: 2),
  report(
    "with Vary: Accept-Encoding, Accept-Language", request(("Accept-Language", "en-US,en;q=0.9,de;q=0.8")),
    vary: "Accept-Encoding, Accept-Language", allowed: 2),
  report("with Vary: X-Tenant", request(("X-Tenant", "a1b2c3")), vary: "X-Tenant", allowed: 2),
  report("with Authorization", request(("Authorization", "Bearer 0123456789")), allowed: 2),
  report("with directives in the request", request(("Cache-Control", "max-age=600, min-fresh=5")), allowed: nil),
]
if allocation_count() == 0 { fatalError("Allocations are not counted") }
exit(kept.allSatisfy { $0 } ? 0 : 1)
