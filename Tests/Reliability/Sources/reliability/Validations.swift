import CachingStorage
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract
import Synchronization

/// Counts the requests that the origin gets after a soft purge.
enum Validations {
  /// The number of tasks that request a URL at the same time.
  private static let taskCount = 4
  private static let roundCount = 2

  /// Requests each URL by several tasks at once, twice, and describes the conditional requests.
  ///
  /// Fails unless the origin gets exactly one conditional request for each URL.
  static func count(in store: ResponseStore, _ tick: Tick, urls: [String]) -> String {
    let origin = ValidatingOrigin()
    var options = ResponseCache.Options()
    options.clock = { Ledger.date(tick.now) }
    let cache: ResponseCache
    do {
      // Uses the store that is open.
      cache = try ResponseCache(
        directory: store.directory, memoryCapacity: 0, diskCapacity: store.capacityByteCount, options: options)
    } catch { fail("\(error)") }
    let client = CachingClient(cache)
    let done = Tick()
    Task.detached {
      for _ in 0..<roundCount {
        for url in urls { await request(url, client, origin) }
      }
      done.advance()
    }
    while done.now == 1 { usleep(1000) }
    let counts = urls.map { origin.counts($0) }
    for (url, count) in zip(urls, counts) where count != ValidatingOrigin.Counts(conditional: 1, other: 0) {
      fail("\(url): \(count.conditional) conditional requests and \(count.other) others after a soft purge")
    }
    return "\(urls.count) URLs, each requested by \(taskCount) tasks at once and then again: "
      + "\(counts.map(\.conditional).min() ?? 0) to \(counts.map(\.conditional).max() ?? 0) conditional requests per URL"
  }

  private static func request(
    _ url: String, _ client: CachingClient<ResponseCache>, _ origin: ValidatingOrigin
  ) async {
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<taskCount {
        group.addTask {
          guard let target = URL(string: url) else { fail("no URL: \(url)") }
          let head = RequestHead(method: "GET", url: target, fields: HeaderFields())
          do {
            let response = try await client.respond(to: CachingClientRequest(head: head), over: origin)
            if response.head.status != 200 { fail("\(url): status \(response.head.status)") }
          } catch { fail("\(url): \(error)") }
        }
      }
    }
  }
}

/// An origin at which every response is still valid.
private final class ValidatingOrigin: Transport {
  struct Counts: Equatable {
    var conditional = 0
    var other = 0
  }

  private let requests = Mutex<[String: Counts]>([:])

  func counts(_ url: String) -> Counts { requests.withLock { $0[url] ?? Counts() } }

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let isConditional = request.head.fields["if-none-match"] != nil
    requests.withLock { requests in
      var counts = requests[request.head.url.absoluteString] ?? Counts()
      if isConditional { counts.conditional += 1 } else { counts.other += 1 }
      requests[request.head.url.absoluteString] = counts
    }
    // Other requests for the URL arrive in the meantime.
    await Task.yield()
    let fields = HeaderFields([("ETag", "\"1\""), ("Cache-Control", "max-age=2000000000")])
    return IncomingResponse(head: ResponseHead(status: 304, fields: fields), body: ResponseBodyStream(Data()))
  }
}
