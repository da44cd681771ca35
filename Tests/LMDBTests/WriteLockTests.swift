import CLMDB
import Foundation
import LMDB
import Synchronization
import Testing

@Suite("The write lock between processes")
struct WriteLockTests {
  /// A pipe between a process and its forked child.
  private struct Channel {
    private let ends: [CInt]

    init() {
      var ends: [CInt] = [-1, -1]
      guard pipe(&ends) == 0 else { exit(90) }
      self.ends = ends
    }

    func send() {
      var byte: UInt8 = 1
      guard write(ends[1], &byte, 1) == 1 else { _exit(91) }
    }

    func receive() {
      var byte: UInt8 = 0
      guard read(ends[0], &byte, 1) == 1 else { _exit(92) }
    }
  }

  /// The first word of LMDB's mutex, in this process's own mapping of the lock file.
  private struct MutexWord {
    static let holderMask: UInt32 = 0x3FFF_FFFF
    /// Set by a waiter, so that the kernel is asked to wake one.
    static let hasWaiters: UInt32 = 0x8000_0000

    private let word: UnsafeMutablePointer<Atomic<UInt32>>

    /// The process must not have the directory open, because this opens and closes the lock file.
    init(directory: String) {
      let layout = clmdb_make_lock_layout(MemoryLayout<pthread_mutex_t>.size)
      let descriptor = open(directory + "/lock.mdb", O_RDWR)
      let memory = mmap(nil, layout.readers, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
      close(descriptor)
      guard let memory, memory != MAP_FAILED else { exit(93) }
      word = (memory + layout.write_mutex).assumingMemoryBound(to: Atomic<UInt32>.self)
    }

    var holder: UInt32 { word.pointee.load(ordering: .sequentiallyConsistent) & Self.holderMask }

    func forgetWaiters() {
      word.pointee.bitwiseAnd(~Self.hasWaiters, ordering: .sequentiallyConsistent)
    }
  }

  /// Runs `body` with the environment of a directory in a forked child.
  private static func inChild(_ path: String, _ body: (LMDBEnvironment) throws -> Void) -> pid_t {
    let child = fork()
    guard child == 0 else { return child }
    do {
      try body(try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20)))
      _exit(0)
    } catch {
      _exit(94)
    }
  }

  private static func isAsleep(_ process: pid_t) -> Bool {
    guard let status = try? String(contentsOfFile: "/proc/\(process)/stat", encoding: .utf8) else { return false }
    return status.split(separator: ")").last?.split(separator: " ").first == "S"
  }

  /// Waits up to ten seconds; then kills the process. Returns whether it ended with the status 0.
  private static func hasSucceeded(_ process: pid_t) -> Bool {
    var status: CInt = -1
    if waitUntil(within: .seconds(10), { waitpid(process, &status, WNOHANG) == process }) { return status == 0 }
    kill(process, SIGKILL)
    waitpid(process, &status, 0)
    return false
  }

  //  this process          holder                waiter
  //  ------------          ------                ------
  //                        write {
  //                                              write: waits
  //  forgets the waiter
  //                        }
  //                                              write { }
  //
  // The kill of another waiter at the wrong moment has this effect: LMDB's mutex is free, and it does not know that a
  // thread sleeps in it.
  @Test("A waiting process writes when the lock is free, even if LMDB's mutex does not know that it waits")
  func forgottenWaiter() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let path = directory.path
      do { _ = try directory.open() }
      let (isReady, mayWrite, isWriting, isHolding, mayEnd) = (Channel(), Channel(), Channel(), Channel(), Channel())
      let waiter = Self.inChild(path) { environment in
        // The first transaction syncs the file, which can take long.
        try environment.write { _ throws(LMDBError) in }
        isReady.send()
        mayWrite.receive()
        isWriting.send()
        try environment.write { _ throws(LMDBError) in }
      }
      isReady.receive()
      let holder = Self.inChild(path) { environment in
        try environment.write { _ throws(LMDBError) in
          isHolding.send()
          mayEnd.receive()
        }
      }
      isHolding.receive()
      let word = MutexWord(directory: path)
      guard word.holder == UInt32(holder) else { exit(11) }
      mayWrite.send()
      isWriting.receive()
      waitUntil { Self.isAsleep(waiter) }
      word.forgetWaiters()
      mayEnd.send()
      guard Self.hasSucceeded(holder) else { exit(12) }
      guard Self.hasSucceeded(waiter) else { exit(13) }
    }
  }

  @Test("A forked child does not keep the write lock of its parent, which was killed in a transaction")
  func forkedChildOfKilledWriter() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let path = directory.path
      do { _ = try directory.open() }
      let (isForked, isOver) = (Channel(), Channel())
      let holder = Self.inChild(path) { environment in
        try environment.write { _ throws(LMDBError) in
          if fork() == 0 {
            // The handlers of the fork have run.
            isForked.send()
            isOver.receive()
            _exit(0)
          }
          while true { pause() }
        }
      }
      isForked.receive()
      kill(holder, SIGKILL)
      waitpid(holder, nil, 0)
      let writer = Self.inChild(path) { environment in try environment.write { _ throws(LMDBError) in } }
      let hasWritten = Self.hasSucceeded(writer)
      isOver.send()
      guard hasWritten else { exit(11) }
    }
  }
}
