import CacheModel
import CachingClient
import FleetRedis
import FoundationEssentials
import HTTPCaching
import Synchronization

/// One request that may use a response of another machine, and shares its own.
///
/// To the caching client the fleet is a shared cache before the origin: its responses have an `Age`.
struct FleetFetch: Sendable {
  let objects: SharedObjects
  let request: OutgoingRequest
  let shared: SharedRequest
  let transport: any Transport
  /// The machine's position in the log of purges before the request.
  let position: LogPosition

  func run() async throws -> IncomingResponse {
    let limit = objects.settings.maximumFetchWait
    let deadline = ContinuousClock.now + min(limit, request.timeLimit ?? limit)
    var pause = Duration.milliseconds(10)
    /// The token of the fetch that this request waits for, and how many it has waited for.
    var token: [UInt8]?
    var fetchCount = 0
    while true {
      switch await objects.lookUp(shared, at: position) {
      case .object(let fresh):
        objects.count(.sharedHits)
        return response(fresh)
      case .fetch(let lock, let stale):
        objects.count(.sharedMisses)
        return try await fetch(holding: lock, validating: stale)
      case .wait(let current, let stale):
        if let stale, !hasValidators, mayServeStale(stale) {
          objects.count(.sharedHits)
          return response(stale)
        }
        if fetchCount == 0 { objects.count(.fetchWaits) }
        if current != token { fetchCount += 1 }
        token = current
        // After a fetch that failed, one of those that waited takes over. If that fails, too, they go at once:
        // otherwise each would wait for the failures of all before it.
        guard fetchCount <= 2, ContinuousClock.now < deadline else {
          return try await fetch(holding: nil, validating: stale)
        }
        try await Task.sleep(for: pause)
        pause = min(pause * 2, .milliseconds(200))
      case .pass: return try await fetch(holding: nil, validating: nil)
      case .unavailable: return try await transport.send(request)
      }
    }
  }

  /// Whether the machine has a response of its own to validate.
  private var hasValidators: Bool {
    request.head.fields.contains("If-None-Match") || request.head.fields.contains("If-Modified-Since")
  }

  // MARK: Shared responses

  /// Whether a stale response may be used while another machine validates it (RFC 5861 section 3).
  private func mayServeStale(_ usable: SharedObjects.Usable) -> Bool {
    let (object, now) = (usable.object, Date())
    let decision = Reuse.decide(
      request: shared.head, stored: object.stored(for: shared.head, age: usable.age, now: now),
      policy: .useProtocolCachePolicy, now: now, options: .sharedResponses)
    guard case .serveStale(_, revalidateInBackground: true, _) = decision else { return false }
    return !object.isNotModified
  }

  /// The response from an object: 304 if the caching client has the same representation.
  private func response(_ usable: SharedObjects.Usable) -> IncomingResponse {
    let object = usable.object
    var fields = object.fields
    fields.set("Age", String(Int(max(0, min(usable.age, FreshnessInfo.maximumSeconds)))))
    var response: IncomingResponse
    if object.isHeld(by: request.head) {
      response = IncomingResponse(head: ResponseHead(status: 304, fields: fields), body: .empty)
    } else {
      response = IncomingResponse(
        head: ResponseHead(status: object.status, fields: fields), body: ResponseBodyStream(object.body),
        isContentDecoded: object.isDecoded)
    }
    response.rule = .fleet
    return response
  }

  /// Freshens the shared copy by a 304, and returns the response for this machine; nil if the 304 is about another
  /// representation.
  private func freshen(
    _ object: SharedObject, _ stored: SharedObject.Stored, by response: IncomingResponse, requestTime: Date,
    holding lock: HeldLock?
  ) -> IncomingResponse? {
    let now = Date()
    let freshening = Freshening.decide(
      notModified: response.head, request: shared.head, stored: stored, requestTime: requestTime, responseTime: now,
      options: .sharedResponses)
    let fields: HeaderFields
    var isKept = true
    switch freshening {
    case .update(let updated, _, _): fields = updated
    case .updateAndRemove(let updated, _, let rule):
      fields = updated
      // The head of a 304 had no `Vary` before.
      isKept = object.isNotModified && rule == .varyExtended
    case .unrelated, .markStale: return nil
    }
    var updated = IncomingResponse(
      head: ResponseHead(status: object.status, fields: fields), body: ResponseBodyStream(object.body),
      isContentDecoded: object.isDecoded)
    updated.usedUnseenCredentials = response.usedUnseenCredentials
    if isKept, let offer = shared.offer(updated, requestTime: requestTime, responseTime: now) {
      let taken = lock?.take()
      Task { [objects, shared, position] in
        await objects.refresh(object, with: offer, for: shared, at: position, releasing: taken)
      }
    } else {
      lock?.release(isShareable: false)
    }
    return object.isHeld(by: request.head) ? response : updated
  }

  // MARK: Fetches

  /// Sends the request, and offers its response to the fleet. Another machine's request waits while the lock is held.
  ///
  /// - Parameter stale: The shared copy to validate. It takes the place of this machine's own, so that the response is
  ///   of use for the other machines, too.
  private func fetch(
    holding lock: SharedObjects.Lock?, validating stale: SharedObjects.Usable?
  ) async throws -> IncomingResponse {
    let requestTime = Date()
    let held = lock.map { HeldLock($0, objects) }
    var sent = request
    var validated: (object: SharedObject, stored: SharedObject.Stored)?
    if let stale {
      let stored = stale.object.stored(for: shared.head, age: stale.age, now: requestTime)
      let conditions = Reuse.validation(of: stored)
      if !conditions.isEmpty {
        sent.head = request.head.conditional(on: conditions)
        validated = (stale.object, stored)
      }
    }
    do {
      var response = try await transport.send(sent)
      if response.head.status == 304, let (object, stored) = validated ?? sharedValidation(of: lock, at: requestTime) {
        if let updated = freshen(object, stored, by: response, requestTime: requestTime, holding: held) {
          return updated
        }
        sent.head = request.head.conditional(on: HeaderFields())
        response = try await transport.send(sent)
      }
      return await share(response, requestTime: requestTime, holding: held)
    } catch {
      held?.release(isShareable: true)
      throw error
    }
  }

  /// The object of a 304 to this machine's own response, for the machines that have the same one; nil without one or a
  /// lock.
  ///
  /// So the machines validate it once also if Redis has no copy, for example because it has no memory.
  private func sharedValidation(
    of lock: SharedObjects.Lock?, at time: Date
  ) -> (object: SharedObject, stored: SharedObject.Stored)? {
    var fields = HeaderFields()
    if let tag = request.head.fields["If-None-Match"] { fields.set("ETag", tag) }
    if let date = request.head.fields["If-Modified-Since"] { fields.set("Last-Modified", date) }
    guard let lock, hasValidators else { return nil }
    var object = SharedObject(
      key: lock.objectKey, position: position, status: 200, fields: fields, body: Data(), ageAtStoring: 0, lifetime: 0,
      milliseconds: 0)
    object.isNotModified = true
    return (object, object.stored(for: shared.head, age: 0, now: time))
  }

  /// Stores a response in Redis if it may be shared, when its body is complete.
  private func share(
    _ response: IncomingResponse, requestTime: Date, holding lock: HeldLock?
  ) async -> IncomingResponse {
    let limit = objects.settings.maximumSharedBodyByteCount
    let declared = response.isContentDecoded ? nil : response.head.fields["Content-Length"].flatMap { Int($0) }
    guard let offer = shared.offer(response, requestTime: requestTime, responseTime: Date()),
      declared ?? 0 <= limit, response.body.bytes?.count ?? 0 <= limit
    else {
      // An error says little about whether the response can be shared.
      let status = response.head.status
      lock?.release(isShareable: status == 304 || status == 429 || status >= 500)
      return response
    }
    let finish: @Sendable (Data) -> Void = { [objects, shared, position] body in
      guard declared == nil || declared == body.count else {
        lock?.release(isShareable: true)
        return
      }
      Task {
        await objects.store(
          offer, body: body, isDecoded: response.isContentDecoded, for: shared, at: position,
          releasing: lock?.take())
      }
    }
    if let bytes = response.body.bytes {
      finish(bytes)
      return response
    }
    var streamed = response
    let tee = BodyTee(response.body, limit: limit) { body in
      if let body { finish(body) } else { lock?.release(isShareable: false) }
    }
    streamed.body = ResponseBodyStream(next: { try await tee.next() })
    return streamed
  }
}

/// A fetch lock that is renewed until it is released. Releasing the object releases the lock.
final class HeldLock: Sendable {
  private let lock: SharedObjects.Lock
  private let objects: SharedObjects
  private let renewal: Mutex<Alarm?>

  init(_ lock: SharedObjects.Lock, _ objects: SharedObjects) {
    self.lock = lock
    self.objects = objects
    let pause = min(objects.settings.fetchLockLease, .longest) * 3 / 10
    renewal = Mutex(
      Alarm(at: .now + pause) {
        Task { await objects.renew(lock) }
        return .now + pause
      })
  }

  deinit {
    release(isShareable: true)
  }

  /// Releases the lock. Only the first call has an effect.
  func release(isShareable: Bool) {
    guard let lock = take() else { return }
    Task { [objects] in await objects.release(lock, isShareable: isShareable) }
  }

  /// Ends the renewals, and returns the lock for the caller to release; nil if it was released or taken before.
  func take() -> SharedObjects.Lock? {
    guard let alarm = renewal.withLock({ $0.take() }) else { return nil }
    alarm.cancel()
    return lock
  }
}

/// Passes the chunks of a body on, and collects them up to a limit.
///
/// `@unchecked Sendable`: a call of `next` begins only after the one before has returned, as `ResponseBodyStream`
/// promises, and only these calls access its state.
final class BodyTee: @unchecked Sendable {
  private var iterator: ResponseBodyStream.AsyncIterator
  private var collector: BodyCollector
  private var whenDone: (@Sendable (Data?) -> Void)?

  /// - Parameter whenDone: Called once with the complete body, or with nil if it is too large. Released without a call
  ///   if the body is incomplete.
  init(_ body: ResponseBodyStream, limit: Int, whenDone: @escaping @Sendable (Data?) -> Void) {
    collector = BodyCollector(limit: limit)
    iterator = body.makeAsyncIterator()
    self.whenDone = whenDone
  }

  func next() async throws -> Data? {
    do {
      guard let chunk = try await iterator.next() else {
        // Some sequences end without an error when their task is cancelled. The body is then incomplete.
        if Task.isCancelled { whenDone = nil } else { finish(collector.joined()) }
        return nil
      }
      if whenDone != nil, !collector.append(chunk) { finish(nil) }
      return chunk
    } catch {
      whenDone = nil
      throw error
    }
  }

  private func finish(_ body: Data?) {
    whenDone.take()?(body)
  }
}
