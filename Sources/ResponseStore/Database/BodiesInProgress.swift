import Glibc
import Synchronization
import SystemFiles

/// The bodies that this process writes and that have no record header yet.
///
/// A lock on a byte of the directory shows each of them to other processes, also to those in other containers. It ends
/// with the process, so the others can delete what it left.
final class BodiesInProgress: Sendable {
  private struct State {
    var bodies: [UInt64: Body] = [:]
    var beginCount: UInt64 = 0
    var directoryLock: LockDescriptor?
    var whenAbandoned: (@Sendable () -> Void)?
  }

  private struct Body {
    /// Distinguishes bodies with one ID: that of a transaction that fails is used again.
    let number: UInt64
    var byteCount = 0
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

  /// The byte of a body. Those before are of other locks of the directory.
  private static func lockedBytes(of bodyID: UInt64) -> Range<Int> {
    let position = 1 << 32 + Int(truncatingIfNeeded: bodyID & (1 << 60 - 1))
    return position..<position + 1
  }
}

/// The right of this process to write a body. When it is released, the body is deleted unless a record has it.
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
