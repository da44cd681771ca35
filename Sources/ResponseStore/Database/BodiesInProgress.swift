import Glibc
import Synchronization
import SystemFiles

/// The bodies that this process writes and that have no record header yet.
///
/// For each of them, this process holds a lock on one byte of the directory, which other processes see, also those in
/// other containers. The lock ends with the process. Then the others delete the rows of the body.
final class BodiesInProgress: Sendable {
  private struct State {
    var bodies: [UInt64: Body] = [:]
    var beginCount: UInt64 = 0
    var directoryLock: LockDescriptor?
    var whenAbandoned: (@Sendable () -> Void)?
  }

  private struct Body {
    /// Distinguishes bodies with the same ID. The ID of a body whose first transaction fails is used again.
    let number: UInt64
    var byteCount = 0
    var phase = Phase.growing

    enum Phase {
      case growing
      /// All bytes are written.
      case complete
      /// Bodies that began earlier need its space, so it cannot be completed.
      case revoked
    }
  }

  private let state = Mutex(State())

  /// Sets the open directory for the locks. Call this while opening.
  func useLocks(of directory: LockDescriptor?) {
    state.withLock { $0.directoryLock = directory }
  }

  /// Sets a function that is called when this process has abandoned a body, whose rows are then to be deleted.
  func notify(_ whenAbandoned: @escaping @Sendable () -> Void) {
    state.withLock { $0.whenAbandoned = whenAbandoned }
  }

  fileprivate func noteAbandoned() { state.withLock { $0.whenAbandoned }?() }

  /// The bytes of the bodies that were written so far.
  var byteCount: Int { state.withLock { $0.bodies.values.reduce(0) { $0 + $1.byteCount } } }
  /// The number of bodies.
  var count: Int { state.withLock { $0.bodies.count } }

  /// Begins a body. Returns a number for ``end(_:number:)``.
  func begin(_ bodyID: UInt64) -> UInt64 {
    state.withLock { state in
      state.beginCount += 1
      state.bodies[bodyID] = Body(number: state.beginCount)
      // Without the lock, another process deletes the body. It is then not stored.
      _ = state.directoryLock?.shareBytes(Self.lockedBytes(of: bodyID))
      return state.beginCount
    }
  }

  /// Makes space for more bytes of a body: revokes bodies that began after it, the latest first, until all together
  /// have at most `limit` bytes.
  ///
  /// - Parameter bodyID: The body; nil for one that begins.
  /// - Returns: The revoked bodies; nil if this body cannot have more bytes.
  fileprivate func makeWay(for bodyID: UInt64?, by byteCount: Int, limit: Int) -> [UInt64]? {
    state.withLock { state in
      let own = bodyID.map { state.bodies[$0] ?? Body(number: 0, phase: .revoked) }
      guard own?.phase != .revoked, (own?.byteCount ?? 0) + byteCount <= limit else { return nil }
      var revoked: [UInt64] = []
      while true {
        let counted = state.bodies.filter { $0.value.phase != .revoked }
        if counted.values.reduce(byteCount, { $0 + $1.byteCount }) <= limit { return revoked }
        let last = counted.filter { $0.value.phase == .growing }.max { $0.value.number < $1.value.number }
        guard let own, let last, last.value.number > own.number else { return nil }
        state.bodies[last.key]?.phase = .revoked
        revoked.append(last.key)
      }
    }
  }

  fileprivate func isRevoked(_ bodyID: UInt64, number: UInt64) -> Bool {
    state.withLock { $0.bodies[bodyID].map { $0.number != number || $0.phase == .revoked } ?? true }
  }

  /// Records that a body has all of its bytes. Returns false if it was revoked.
  fileprivate func complete(_ bodyID: UInt64, number: UInt64) -> Bool {
    state.withLock { state in
      guard let body = state.bodies[bodyID], body.number == number, body.phase != .revoked else { return false }
      state.bodies[bodyID]?.phase = .complete
      return true
    }
  }

  func add(_ byteCount: Int, to bodyID: UInt64) {
    state.withLock { state in
      state.bodies[bodyID]?.byteCount += byteCount
    }
  }

  func end(_ bodyID: UInt64, number: UInt64) {
    state.withLock { state in
      guard state.bodies[bodyID]?.number == number else { return }
      state.bodies[bodyID] = nil
      state.directoryLock?.unlockBytes(Self.lockedBytes(of: bodyID))
    }
  }

  /// Whether no process writes a body now.
  ///
  /// - Parameter processID: The process that has begun the body; 0 if it is being deleted.
  func isAbandoned(_ bodyID: UInt64, begunBy processID: Int32) -> Bool {
    if processID <= 0 { return true }
    return state.withLock { state in
      if state.bodies[bodyID] != nil { return false }
      if let isLocked = state.directoryLock?.areLockedByOthers(Self.lockedBytes(of: bodyID)) { return !isLocked }
      // The file system has no such locks.
      return processID != getpid() && kill(processID, 0) != 0 && errno == ESRCH
    }
  }

  /// The byte that is locked for a body. Lower bytes are for other locks of the directory.
  private static func lockedBytes(of bodyID: UInt64) -> Range<Int> {
    let position = 1 << 32 + Int(truncatingIfNeeded: bodyID & (1 << 60 - 1))
    return position..<position + 1
  }
}

extension RecordDatabase {
  /// Makes space for more bytes of a body: deletes bodies in progress that began after it, the latest first, until all
  /// together have at most `limit` bytes.
  ///
  /// Otherwise several bodies that do not fit together would all fail.
  ///
  /// - Parameter claim: The body; nil for one that begins.
  /// - Returns: Whether the body can have more bytes.
  func makeWay(for claim: BodyClaim?, by byteCount: Int, limit: Int) -> Bool {
    guard let revoked = bodiesInProgress.makeWay(for: claim?.bodyID, by: byteCount, limit: limit) else { return false }
    for bodyID in revoked { orphanedBodies.note(bodyID) }
    return true
  }
}

/// The right of this process to write a body. When this object is released, the rows of the body are deleted, unless a
/// committed record has the body.
final class BodyClaim: Sendable {
  let bodyID: UInt64
  private let database: RecordDatabase
  private let number: UInt64
  private let state = Atomic(State.begun.rawValue)

  private enum State: UInt8 {
    /// No transaction with rows of the body is committed.
    case begun
    case written
    /// A committed record has the body.
    case stored
  }

  init(_ bodyID: UInt64, in database: RecordDatabase) {
    self.bodyID = bodyID
    self.database = database
    number = database.bodiesInProgress.begin(bodyID)
  }

  /// Whether bodies that began earlier need the space of this one. Then its rows are deleted at any time.
  var isRevoked: Bool { database.bodiesInProgress.isRevoked(bodyID, number: number) }

  /// Records that all bytes are written, so that the body is no longer revoked. Returns false if it was.
  func complete() -> Bool { database.bodiesInProgress.complete(bodyID, number: number) }

  /// Records that rows of the body are committed.
  func noteWritten() { state.store(State.written.rawValue, ordering: .relaxed) }

  /// Records that a committed record has the body.
  func noteStored() {
    state.store(State.stored.rawValue, ordering: .relaxed)
    database.bodiesInProgress.end(bodyID, number: number)
  }

  deinit {
    database.bodiesInProgress.end(bodyID, number: number)
    guard state.load(ordering: .relaxed) == State.written.rawValue else { return }
    database.orphanedBodies.note(bodyID)
    database.bodiesInProgress.noteAbandoned()
  }
}
