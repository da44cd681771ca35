internal import CLMDB
internal import Glibc
internal import Synchronization

/// The reader slots of an environment: as many as the lock file has.
///
/// The first `pooledCount` slots keep their transaction between uses. A read then costs a renewal instead of an
/// allocation and a pass through LMDB's shared lock. ``endIdleTransactions(for:)`` ends transactions that are not used
/// for a while. The other slots serve peaks, and end their transaction after each use.
struct ReaderSlots: @unchecked Sendable {
  // Sendable: the pointers are constant, and the atomic owner of a slot guards its contents.
  private let slots: UnsafeMutablePointer<ReaderSlot>
  let count: Int
  let pooledCount: Int
  /// The end of the slots that were ever used. It never decreases.
  private let usedEnd: UnsafeMutablePointer<Atomic<Int>>
  private let byteCount: Int

  /// Creates free slots; nil if the process has no memory for them, with the reason in `errno`.
  init?(count: Int) {
    self.count = count
    // A pooled transaction holds a reader slot of the lock file, so a process keeps only a few per core.
    let cores = max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)))
    pooledCount = min(count, max(16, 4 * cores))
    byteCount = count * MemoryLayout<ReaderSlot>.stride
    // New pages are zero, which makes their slots free. Pages that are never used take no memory.
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    guard let memory, memory != MAP_FAILED else { return nil }
    slots = memory.bindMemory(to: ReaderSlot.self, capacity: count)
    usedEnd = .allocate(capacity: 1)
    usedEnd.initialize(to: Atomic(pooledCount))
  }

  private var used: Range<Int> { 0..<usedEnd.pointee.load(ordering: .sequentiallyConsistent) }

  /// Ends the pooled transactions. No thread may own a slot, or pass the gate afterwards.
  func endTransactions() {
    for index in used {
      if let transaction = slots[index].transaction { mdb_txn_abort(transaction) }
      slots[index].transaction = nil
    }
  }

  /// Frees the memory. The transactions must have ended.
  func destroy() {
    munmap(slots, byteCount)
    usedEnd.deinitialize(count: 1)
    usedEnd.deallocate()
  }

  /// Claims a free slot for the calling thread, preferably the last one it had; nil if there is none.
  func claim(for thread: UInt) -> UnsafeMutablePointer<ReaderSlot>? {
    let hint = clmdb_reader_hint()!
    let preferred = Int(hint.pointee)
    if preferred != 0, preferred <= pooledCount, tryClaim(preferred - 1, for: thread) {
      return slots + (preferred - 1)
    }
    return claimAnother(for: thread, hint: hint)
  }

  @inline(never)
  private func claimAnother(
    for thread: UInt, hint: UnsafeMutablePointer<UInt32>
  ) -> UnsafeMutablePointer<ReaderSlot>? {
    // Threads start at different slots and return to the slot they found, so that soon no two threads compete for one.
    let start = hint.pointee == 0 ? Int((thread &* 0x9E37_79B9_7F4A_7C15) >> 48) : Int(hint.pointee)
    // A nested read needs a second slot only once, so it does not change the hint.
    let isNested = (1...pooledCount).contains(start) && slots[start - 1].owner.load(ordering: .relaxed) == thread
    // Try the thread's own slot first, because it may be idle.
    let first = start + pooledCount - 1
    for offset in 0..<pooledCount {
      let index = (first + offset) % pooledCount
      if tryClaimFree(index, for: thread) {
        if !isNested { hint.pointee = UInt32(index + 1) }
        return slots + index
      }
    }
    for index in pooledCount..<count {
      // Raise the end before claiming the slot, because the thread that closes the gate examines all slots below it.
      if index >= usedEnd.pointee.load(ordering: .relaxed) {
        usedEnd.pointee.max(index + 1, ordering: .sequentiallyConsistent)
      }
      if tryClaim(index, for: thread) { return slots + index }
    }
    return nil
  }

  /// Claims a free slot that has a transaction; nil if there is none.
  func claimWithTransaction(for thread: UInt) -> UnsafeMutablePointer<ReaderSlot>? {
    for index in 0..<pooledCount where tryClaimFree(index, for: thread) {
      if slots[index].transaction != nil { return slots + index }
      release(slots + index)
    }
    return nil
  }

  private func tryClaim(_ index: Int, for thread: UInt) -> Bool {
    take(index, from: ReaderSlot.free, for: thread)
  }

  private func tryClaimFree(_ index: Int, for thread: UInt) -> Bool {
    tryClaim(index, for: thread) || take(index, from: ReaderSlot.idle, for: thread)
  }

  private func take(_ index: Int, from state: UInt, for thread: UInt) -> Bool {
    // Sequentially consistent, like the check of the gate that follows: either this thread sees the closed gate, or the
    // closing thread sees this slot in use.
    slots[index].owner.compareExchange(expected: state, desired: thread, ordering: .sequentiallyConsistent).exchanged
  }

  func release(_ slot: UnsafeMutablePointer<ReaderSlot>) {
    slot.pointee.owner.store(ReaderSlot.free, ordering: .releasing)
  }

  /// Whether the slot keeps its transaction after a use.
  func isPooled(_ slot: UnsafeMutablePointer<ReaderSlot>) -> Bool {
    slot < slots + pooledCount
  }

  /// Ends the pooled transactions that were not used since the last call, and releases their slots in the lock file.
  ///
  /// Marks free slots as idle. A use leaves the slot free and thereby removes the mark, so marking costs reads nothing.
  func endIdleTransactions(for thread: UInt) {
    for index in 0..<pooledCount {
      if take(index, from: ReaderSlot.idle, for: thread) {
        if let transaction = slots[index].transaction { mdb_txn_abort(transaction) }
        slots[index].transaction = nil
        slots[index].owner.store(ReaderSlot.idle, ordering: .releasing)
      } else {
        _ = take(index, from: ReaderSlot.free, for: ReaderSlot.idle)
      }
    }
  }

  /// Returns the number of slots that a thread owns.
  func ownedCount(by thread: UInt) -> Int {
    var owned = 0
    for index in used where slots[index].owner.load(ordering: .relaxed) == thread { owned += 1 }
    return owned
  }

  /// Waits until all slots are free; false if that takes more than `patience` nanoseconds. The gate must be closed.
  ///
  /// Polls, because waking would need a fence in every read, and reads take microseconds.
  func waitUntilIdle(for patience: UInt64) -> Bool {
    let deadline = Clock.now + patience
    var attempts = 0
    for index in used {
      while slots[index].owner.load(ordering: .sequentiallyConsistent) > ReaderSlot.idle {
        attempts += 1
        guard attempts % 16 != 0 || Clock.now < deadline else { return false }
        if attempts < 1000 { sched_yield() } else { usleep(50) }
      }
    }
    return true
  }
}
