import CachingClient
import FoundationEssentials
import HTTPCaching
import ResponseStore
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
  let position: FleetFile.Position

  private var counters: FleetCounters { objects.counters }

  func run() async throws -> IncomingResponse {
    let deadline = ContinuousClock.now + objects.settings.configuration.maximumFetchWait
    var pause = Duration.milliseconds(10)
    var isFirst = true
    while true {
      switch await objects.lookUp(shared, at: position) {
      case .object(let object, let age):
        if age < object.lifetime {
          counters.count(.sharedHits)
          return response(object, age: age)
        }
        return try await validate(object)
      case .fetch(let lock):
        counters.count(.sharedMisses)
        return try await fetch(holding: lock)
      case .wait:
        if isFirst { counters.count(.fetchWaits) }
        isFirst = false
        guard ContinuousClock.now < deadline else { return try await fetch(holding: nil) }
        try await Task.sleep(for: pause)
        pause = min(pause * 2, .milliseconds(200))
      case .pass: return try await fetch(holding: nil)
      case .unavailable: return try await transport.send(request)
      }
    }
  }

  // MARK: Shared responses

  /// The response from an object: 304 if the caching client has the same representation.
  private func response(_ object: SharedObject, age: Double) -> IncomingResponse {
    var fields = object.fields
    fields.set("Age", String(Int(max(0, min(age, FreshnessInfo.maximumSeconds)))))
    var response: IncomingResponse
    if let tags = request.head.fields["If-None-Match"], let tag = object.fields["ETag"], tags == tag {
      response = IncomingResponse(head: ResponseHead(status: 304, fields: fields), body: .empty)
    } else {
      response = IncomingResponse(
        head: ResponseHead(status: object.status, fields: fields), body: ResponseBody(object.body),
        isContentDecoded: object.isDecoded)
    }
    response.isFromFleet = true
    return response
  }

  /// Validates a stale object at the origin. A 304 extends the shared copy.
  private func validate(_ object: SharedObject) async throws -> IncomingResponse {
    guard let tag = object.fields["ETag"] else { return try await fetch(holding: nil) }
    let own = request.head.fields["If-None-Match"]
    let hasOwn = own != nil || request.head.fields.contains("If-Modified-Since")
    guard !hasOwn || own == tag else { return try await fetch(holding: nil) }
    var conditional = request
    if !hasOwn { conditional.head.fields.set("If-None-Match", tag) }
    let requestTime = Date()
    let response = try await transport.send(conditional)
    guard response.head.status == 304 else { return await share(response, requestTime: requestTime, holding: nil) }
    // The fields of the 304 replace those of the object (RFC 9111 section 4.3.4).
    var fields = object.fields.updated(
      from: response.head.fields, except: ["content-length", "content-encoding", "content-range", "transfer-encoding"])
    if !response.head.fields.contains("Age") { fields.remove("Age") }
    var updated = IncomingResponse(
      head: ResponseHead(status: object.status, fields: fields), body: ResponseBody(object.body),
      isContentDecoded: object.isDecoded)
    updated.usedUnseenCredentials = response.usedUnseenCredentials
    if let offer = shared.offer(updated, requestTime: requestTime, responseTime: Date()) {
      Task { [objects, position] in await objects.refresh(object, with: offer, at: position) }
    }
    return hasOwn ? response : updated
  }

  // MARK: Fetches

  /// Sends the request, and offers its response to the fleet. Another machine's request waits while the lock is held.
  private func fetch(holding lock: SharedObjects.Lock?) async throws -> IncomingResponse {
    let requestTime = Date()
    let held = lock.map { HeldLock($0, objects) }
    do {
      return await share(try await transport.send(request), requestTime: requestTime, holding: held)
    } catch {
      held?.release(isShareable: true)
      throw error
    }
  }

  /// Stores a response in Redis if it may be shared, when its body is complete.
  private func share(
    _ response: IncomingResponse, requestTime: Date, holding lock: HeldLock?
  ) async -> IncomingResponse {
    let limit = objects.settings.configuration.maximumSharedBodyByteCount
    let declared = response.isContentDecoded ? nil : response.head.fields["Content-Length"].flatMap { Int($0) }
    guard let offer = shared.offer(response, requestTime: requestTime, responseTime: Date()),
      declared ?? 0 <= limit, response.body.bytes?.count ?? 0 <= limit
    else {
      // A 304 says nothing about whether the response can be shared, and an error little.
      let status = response.head.status
      lock?.release(isShareable: status == 304 || status >= 500)
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
    streamed.body = ResponseBody(next: { try await tee.next() })
    return streamed
  }
}

/// A fetch lock that is renewed until it is released. Releasing the object releases the lock.
final class HeldLock: Sendable {
  private let lock: SharedObjects.Lock
  private let objects: SharedObjects
  private let renewal: Mutex<Task<Void, Never>?>

  init(_ lock: SharedObjects.Lock, _ objects: SharedObjects) {
    self.lock = lock
    self.objects = objects
    let pause = objects.settings.configuration.fetchLockLease * 3 / 10
    renewal = Mutex(
      Task {
        // The sleep throws only when the task is cancelled, which ends the renewals.
        while (try? await Task.sleep(for: pause)) != nil { await objects.renew(lock) }
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
    guard let task = renewal.withLock({ $0.take() }) else { return nil }
    task.cancel()
    return lock
  }
}

/// Passes the chunks of a body on, and collects them up to a limit.
///
/// `@unchecked Sendable`: a call of `next` begins only after the one before has returned, as `ResponseBody` promises, and
/// only these calls access its state.
final class BodyTee: @unchecked Sendable {
  private var iterator: ResponseBody.AsyncIterator
  private var collector: BodyCollector
  private var whenDone: (@Sendable (Data?) -> Void)?

  /// - Parameter whenDone: Called once with the complete body, or with nil if it is too large. Released without a call
  ///   if the body is incomplete.
  init(_ body: ResponseBody, limit: Int, whenDone: @escaping @Sendable (Data?) -> Void) {
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
