import CacheActivity
import FoundationEssentials
import HTTPCaching

/// Recording of requests while a process watches.
extension CachingClient {
  /// Records a response from the store.
  @usableFromInline
  func noteHit(_ response: Response, to request: CachingClientRequest, since start: UInt64) {
    let outcome: RequestOutcome =
      switch response.source {
      case .unavailable: .unavailable
      case .stale: .stale
      default: .hit
      }
    note(response, to: request, outcome, since: start)
  }

  /// Records a request.
  ///
  /// - Parameters:
  ///   - response: The response; nil if the request failed.
  ///   - start: The time at which the request began, in nanoseconds.
  func note(_ response: Response?, to request: CachingClientRequest, _ outcome: RequestOutcome, since start: UInt64) {
    let activity = counters.activity
    let isRecorded = activity.takeGrantedEvent()
    guard isRecorded || activity.observers.isObserved else { return }
    let now = clock()
    var event = RequestEvent(
      time: Date(), processID: ProcessInfo.processInfo.processIdentifier, method: request.head.method,
      url: request.head.url.textWithoutUserInformation, status: response?.status ?? 0, outcome: outcome,
      rule: (response?.storageRefusal ?? response?.reason)?.id ?? "", age: response?.age ?? 0,
      timeToLive: response?.entry.flatMap { Int(exactly: $0.freshness.timeToLive(at: now).rounded(.down)) },
      byteCount: response?.knownByteCount ?? 0,
      nanoseconds: Int(clamping: ActivityReference.nanoseconds &- start))
    event.content = contentOfQuery(request).map { .init(digest: $0.digest, byteCount: $0.byteCount) }
    if isRecorded { activity.record(event) }
    activity.observers.emit(.answered(event))
  }

  /// Counts a response that a rule kept from being stored.
  func refuse(_ rule: Rule, _ request: CachingClientRequest, _ fetch: InFlightFetch) {
    fetch.storageReport.decide(.notStored(rule))
    if rule.concernsSize { whenTooLarge?(rule) }
    // The key is that of a GET request, so a response to another method says nothing about it.
    counters.refuse(rule, of: request.head.method == "GET" ? request.identity : nil)
    counters.activity.observers.emit(.refused(url: request.head.url.textWithoutUserInformation, rule: rule.id))
  }
}
