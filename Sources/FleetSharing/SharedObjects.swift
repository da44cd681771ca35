import CacheActivity
import CacheModel
import FleetRedis
import FoundationEssentials
import HTTPCaching

/// The shared responses of a fleet in Redis: lookups with their checks, fetch locks, and stores.
final class SharedObjects: Sendable {
  private let fleet: FleetAddress
  let digest: FleetDigest
  let settings: any SharingSettings
  let log: any FleetLog
  private let workers: SharingWorkers
  private let activity: ActivityReference

  init(
    _ fleet: FleetAddress, digest: FleetDigest, settings: any SharingSettings, log: any FleetLog,
    activity: ActivityReference
  ) {
    self.fleet = fleet
    self.digest = digest
    self.settings = settings
    self.log = log
    self.activity = activity
    workers = SharingWorkers(fleet, settings)
  }

  /// Adds 1 to a counter of the directory.
  func count(_ counter: CounterWord) { activity.add(1, counter) }

  func close() { workers.close() }

  /// A fetch lock: its token, and the key of its object.
  struct Lock: Sendable {
    let objectKey: [UInt8]
    let token: [UInt8]
  }

  /// A response that no purge covers, fresh or stale, with its age in seconds.
  struct Usable: Sendable {
    let object: SharedObject
    let age: Double
    var isFresh: Bool { age < object.lifetime }
  }

  enum Lookup: Sendable {
    /// A fresh response.
    case object(Usable)
    /// None, and this request holds the lock: fetch or validate the stale response, and offer what comes.
    case fetch(Lock, stale: Usable?)
    /// Another machine fetches, with this token.
    case wait(token: [UInt8], stale: Usable?)
    /// The response is known not to be shareable, or Redis has no memory for it.
    case pass
    /// Redis did not respond in time.
    case unavailable
  }

  private func name(_ kind: String, _ key: [UInt8]) -> [UInt8] { fleet.key(kind, digest.digits(key)) }

  // MARK: Lookups

  /// Looks up the response to a request. Takes the fetch lock if there is none that can be used.
  ///
  /// - Parameter position: The machine's position in the log of purges, read after the check of the lease.
  func lookUp(_ request: SharedRequest, at position: LogPosition) async -> Lookup {
    count(.sharedLookups)
    let deadline = BootClock.now + settings.lookupTimeout.nanoseconds
    var key = request.objectKey
    guard var found = await read(key, until: deadline) else { return unavailable() }
    if case .object(let marker, _) = found, marker.isMarker {
      guard let variant = marker.fields["Vary"].flatMap({ request.variantKey(vary: $0, digest) }) else {
        return .pass
      }
      key = variant
      guard let response = await read(key, until: deadline) else { return unavailable() }
      found = response
    }
    let stored = usable(found, for: request, at: position)
    if let stored, stored.isFresh { return .object(stored) }
    if stored == nil, found.isRefusable { count(.refusedObjects) }
    return await takeLock(key, for: request, at: position, until: deadline)
  }

  /// Takes the lock of an object that is missing, stale, or cannot be used.
  private func takeLock(
    _ key: [UInt8], for request: SharedRequest, at position: LogPosition, until deadline: UInt64
  ) async -> Lookup {
    let lock = Lock(objectKey: key, token: Array(RandomID().text.utf8))
    let command = [
      Array("SET".utf8), name("l:", key), lock.token, Array("NX".utf8), Array("GET".utf8), Array("PX".utf8),
      Self.milliseconds(settings.fetchLockLease),
    ]
    // The object again: another machine may have stored it, and released the lock, since it was read.
    guard let replies = await commands([command] + read(key: key), until: deadline),
      let found = found(replies.dropFirst(), key: key)
    else { return unavailable() }
    let stored = usable(found, for: request, at: position)
    let fresh = stored.flatMap { $0.isFresh ? $0 : nil }
    switch replies[0] {
    case .null:
      guard let fresh else { return .fetch(lock, stale: stored) }
      Task { await release(lock, isShareable: true) }
      return .object(fresh)
    case .bytes(let token):
      if let fresh { return .object(fresh) }
      return token == Array("pass".utf8) ? .pass : .wait(token: token, stale: stored)
    // Nothing can be stored now, so no request waits for it.
    case .error(let text) where text.hasPrefix("OOM"): return fresh.map { Lookup.object($0) } ?? .pass
    default: return unavailable()
    }
  }

  private func unavailable() -> Lookup {
    count(.failedSharedLookups)
    return .unavailable
  }

  /// The content of Redis for a key.
  private enum Found {
    /// An object, and for how many milliseconds Redis will keep it.
    case object(SharedObject, timeToLive: Int64)
    /// A value that cannot be decoded.
    case corrupt
    case missing

    /// Whether it counts as refused if it is not usable. A 304 is for some machines only.
    var isRefusable: Bool {
      switch self {
      case .object(let object, _): !object.isNotModified
      case .corrupt: true
      case .missing: false
      }
    }
  }

  /// Reads an object; nil if Redis failed.
  private func read(_ key: [UInt8], until deadline: UInt64) async -> Found? {
    await commands(read(key: key), until: deadline).flatMap { found($0[...], key: key) }
  }

  /// The commands that read an object.
  ///
  /// The time for which Redis keeps the object is read first. So for an object that is replaced between the two
  /// commands that time errs on the side of a higher age.
  private func read(key: [UInt8]) -> [[[UInt8]]] {
    let name = name("o:", key)
    return [[Array("PTTL".utf8), name], [Array("HMGET".utf8), name] + Self.fields]
  }

  private static let fields = ["k", "e", "s", "m", "h", "b"].map { Array($0.utf8) }

  /// Decodes the replies to ``read(key:)``; nil if Redis sent something else.
  private func found(_ replies: ArraySlice<RedisReply>, key: [UInt8]) -> Found? {
    guard case .integer(let timeToLive)? = replies.first, case .array(let values)? = replies.last, values.count == 6
    else {
      workers.noteFailure()
      return nil
    }
    if values[0] == .null { return .missing }
    // A reply of another type than the library writes is as corrupt as bytes that do not match their checksum.
    guard let object = try? SharedObject(values, key: key) else { return .corrupt }
    return .object(object, timeToLive: timeToLive)
  }

  /// Sends commands in one round trip; nil if Redis failed or was late.
  private func commands(_ commands: [[[UInt8]]], until deadline: UInt64) async -> [RedisReply]? {
    let now = BootClock.now
    return await workers.commands(commands, within: .nanoseconds(deadline > now ? deadline - now : 0))
  }

  /// The response, if no purge covers it.
  private func usable(_ found: Found, for request: SharedRequest, at position: LogPosition) -> Usable? {
    guard case .object(let object, let timeToLive) = found, isUsable(object, for: request, at: position) else {
      return nil
    }
    return Usable(object: object, age: object.age(timeToLive: timeToLive))
  }

  /// Whether an object has the form that the request's transport delivers, and no purge that this machine knows covers
  /// it.
  private func isUsable(_ object: SharedObject, for request: SharedRequest, at position: LogPosition) -> Bool {
    guard !object.isMarker, object.epoch == position.epoch else { return false }
    guard
      object.isNotModified
        ? object.isHeld(by: request.head)
        : request.head.delivers(contentOf: object.fields, isDecoded: object.isDecoded)
    else { return false }
    // A 304 need not name the groups of the representation, so any purge may cover it.
    if object.isNotModified { return !log.hasPurge(after: object.seq, since: position) }
    return !log.mayCover(request.key, after: object.seq, since: position, fields: object.fields)
  }

  private static func milliseconds(_ duration: Duration) -> [UInt8] {
    Array(String(max(1, Int64(min(duration, .longest) / .milliseconds(1)))).utf8)
  }

  // MARK: Locks

  /// Renews a lock while its fetch goes on.
  func renew(_ lock: Lock) async {
    _ = await workers.run(within: settings.commandTimeout) {
      [self] (connection, left) throws(RedisTierError) in
      let lease = Self.milliseconds(settings.fetchLockLease)
      try unlock(lock, renewing: lease, on: connection, timeout: left)
    }
  }

  /// Releases a lock.
  ///
  /// - Parameter isShareable: Whether later requests should wait for each other. If not, they do not for 10 seconds.
  func release(_ lock: Lock, isShareable: Bool) async {
    _ = await workers.run(within: settings.commandTimeout) {
      [self] (connection, left) throws(RedisTierError) in
      try unlock(lock, pass: isShareable ? "0" : "10000", on: connection, timeout: left)
    }
  }

  /// Releases or renews a lock.
  ///
  /// - Parameters:
  ///   - pass: For how many milliseconds later requests do not wait for each other.
  ///   - lease: For how many milliseconds to renew the lock instead of releasing it.
  private func unlock(
    _ lock: Lock, pass: String = "0", renewing lease: [UInt8] = Array("0".utf8), on connection: RedisConnection,
    timeout: Duration
  ) throws(RedisTierError) {
    _ = try SharingScripts.unlock.run(
      keys: [name("l:", lock.objectKey)], [lock.token, Array(pass.utf8), lease], on: connection, timeout: timeout)
  }

  // MARK: Stores

  /// Stores a response that was requested at a position in the log of purges, and releases its fetch lock.
  func store(
    _ offer: SharedOffer, body: Data, isDecoded: Bool, for request: SharedRequest,
    at position: LogPosition, releasing lock: Lock?
  ) async {
    let objects = self.objects(offer, body: body, isDecoded: isDecoded, for: request, at: position)
    if objects.isEmpty, lock == nil { return }
    await write(objects.isEmpty ? nil : .sharedStores, releasing: lock) {
      [self] (connection, left) throws(RedisTierError) in
      var isStored = true
      for object in objects { isStored = try put(object, on: connection, timeout: left) && isStored }
      return isStored
    }
  }

  /// Runs a job that stores, and releases a fetch lock.
  ///
  /// - Parameters:
  ///   - counter: Counts the job if it has stored.
  ///   - body: Returns whether it has stored. If not, Redis has no memory, or something newer.
  private func write(
    _ counter: CounterWord?, releasing lock: Lock?,
    _ body: @escaping @Sendable (RedisConnection, Duration) throws(RedisTierError) -> Bool
  ) async {
    let isStored = await workers.run(within: settings.commandTimeout) {
      [self] (connection, left) throws(RedisTierError) in
      let isStored = try body(connection, left)
      if let lock { try unlock(lock, on: connection, timeout: left) }
      return isStored
    }
    if isStored == true, let counter { count(counter) }
    if isStored == nil, let lock { await release(lock, isShareable: true) }
  }

  /// The object of a response, after the marker of its URL if responses vary; empty if it cannot be stored.
  private func objects(
    _ offer: SharedOffer, body: Data, isDecoded: Bool, for request: SharedRequest,
    at position: LogPosition
  ) -> [SharedObject] {
    let milliseconds = offer.milliseconds(maximum: settings.maximumSharedLifetime)
    guard milliseconds > 0 else { return [] }
    var object = SharedObject(
      key: request.objectKey, position: position, status: offer.status, fields: offer.fields, body: body,
      ageAtStoring: offer.freshness.currentAge(at: Date()), lifetime: offer.freshness.lifetime,
      milliseconds: milliseconds)
    object.isDecoded = isDecoded
    guard let vary = offer.vary else { return [object] }
    guard let variant = request.variantKey(vary: vary, digest) else { return [] }
    object.key = variant
    return [marker(vary, of: object, for: request), object]
  }

  /// The marker of a URL whose responses vary, with the position and the lifetime of one of them.
  private func marker(_ vary: String, of variant: SharedObject, for request: SharedRequest) -> SharedObject {
    var marker = variant
    marker.key = request.objectKey
    marker.isMarker = true
    marker.isDecoded = false
    marker.body = Data()
    marker.fields = ["Vary": vary]
    return marker
  }

  /// Stores an object. Returns false if a newer one is stored, or Redis has no memory.
  private func put(
    _ object: SharedObject, on connection: RedisConnection, timeout: Duration
  ) throws(RedisTierError) -> Bool {
    let head = object.encodedHead
    let arguments: [[UInt8]] = [
      object.key, object.epoch, Array(String(object.seq).utf8), object.encodedFreshness(head: head), head,
      Array(object.body), Array(String(object.milliseconds).utf8),
    ]
    return try SharingScripts.store.run(
      keys: [name("o:", object.key)], arguments, on: connection, timeout: timeout
    ).asInteger() > 0
  }

  /// Replaces the head of an object that the origin has validated, and releases its fetch lock.
  ///
  /// - Parameter object: An object of Redis. A 304 can be a new one, which is then stored.
  func refresh(
    _ object: SharedObject, with offer: SharedOffer, for request: SharedRequest, at position: LogPosition,
    releasing lock: Lock?
  ) async {
    var refreshed = object
    refreshed.epoch = position.epoch
    refreshed.seq = position.cursor
    refreshed.fields = offer.fields
    refreshed.storedAt = Date().timeIntervalSince1970
    refreshed.ageAtStoring = offer.freshness.currentAge(at: Date())
    refreshed.lifetime = offer.freshness.lifetime
    refreshed.milliseconds = offer.milliseconds(maximum: settings.maximumSharedLifetime)
    await write(nil, releasing: lock) { [self, refreshed] (connection, left) throws(RedisTierError) in
      guard refreshed.milliseconds > 0 else { return false }
      if refreshed.isNotModified { return try put(refreshed, on: connection, timeout: left) }
      // The marker of the URL lives as long as its variants.
      if object.key != request.objectKey, let vary = offer.vary {
        _ = try put(marker(vary, of: refreshed, for: request), on: connection, timeout: left)
      }
      let head = refreshed.encodedHead
      let arguments: [[UInt8]] = [
        object.epoch, Array(String(object.seq).utf8), refreshed.epoch, Array(String(refreshed.seq).utf8),
        refreshed.encodedFreshness(head: head), head, Array(String(refreshed.milliseconds).utf8),
      ]
      return try SharingScripts.refresh.run(
        keys: [name("o:", object.key)], arguments, on: connection, timeout: left
      ).asInteger() > 0
    }
  }
}
