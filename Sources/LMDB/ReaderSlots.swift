internal import CLMDB
internal import Glibc
internal import Synchronization

/// The slots of an environment: as many as the lock file has.
///
/// The first `pooledCount` keep their transaction between uses, so that a read costs a renewal instead of an
/// allocation and a pass through LMDB's shared lock; until they have not been used for a while: see
/// ``endIdleTransactions(for:)``. The others are for crowds and give it back at once.
struct ReaderSlots: @unchecked Sendable {
  // Sendable: the pointers are constant, and a slot's contents are handed over through its atomic owner.
  private let slots: UnsafeMutablePointer<ReaderSlot>
  let count: Int
  let pooledCount: Int
  /// The slots behind this one have never been used. Never falls.
  private let usedEnd: UnsafeMutablePointer<Atomic<Int>>
  private let byteCount: Int

  init(count: Int) {
    self.count = count
    // A pooled transaction holds one of the lock file's reader slots, so a process keeps only a few for each core.
    let cores = max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)))
    pooledCount = min(count, max(16, 4 * cores))
    byteCount = count * MemoryLayout<ReaderSlot>.stride
    // Fresh pages are zeros, which is what a free slot consists of; those that are never used take no memory.
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    guard let memory, memory != MAP_FAILED else { Trap.outOfMemory() }
    slots = memory.bindMemory(to: ReaderSlot.self, capacity: count)
    usedEnd = .allocate(capacity: 1)
    usedEnd.initialize(to: Atomic(pooledCount))
  }

  private var used: Range<Int> { 0..<usedEnd.pointee.load(ordering: .sequentiallyConsistent) }

  /// Ends the pooled transactions. Nobody may own a slot, or get past the gate, any more.
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

  /// Takes a free slot for the calling thread, preferably the one it had last; nil if there is none.
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
    // Threads start out at different places, and each stays where it found room: soon no two share a slot.
    let start = hint.pointee == 0 ? Int((thread &* 0x9E37_79B9_7F4A_7C15) >> 48) : Int(hint.pointee)
    // A read within a read looks for a second place only for now.
    let isNested = (1...pooledCount).contains(start) && slots[start - 1].owner.load(ordering: .relaxed) == thread
    // Its own one first, which may lie idle.
    let first = start + pooledCount - 1
    for offset in 0..<pooledCount {
      let index = (first + offset) % pooledCount
      if tryClaimFree(index, for: thread) {
        if !isNested { hint.pointee = UInt32(index + 1) }
        return slots + index
      }
    }
    for index in pooledCount..<count {
      // Before the slot is taken: whoever closes the gate looks at all that were ever used.
      if index >= usedEnd.pointee.load(ordering: .relaxed) {
        usedEnd.pointee.max(index + 1, ordering: .sequentiallyConsistent)
      }
      if tryClaim(index, for: thread) { return slots + index }
    }
    return nil
  }

  /// Takes a free slot that has a transaction already; nil if there is none.
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
    // Sequentially consistent, as is the look at the gate that follows: either this thread sees the gate closed, or
    // who closed it sees this slot in use.
    slots[index].owner.compareExchange(expected: state, desired: thread, ordering: .sequentiallyConsistent).exchanged
  }

  func release(_ slot: UnsafeMutablePointer<ReaderSlot>) {
    slot.pointee.owner.store(ReaderSlot.free, ordering: .releasing)
  }

  /// Whether the slot keeps its transaction when it is given back.
  func isPooled(_ slot: UnsafeMutablePointer<ReaderSlot>) -> Bool {
    slot < slots + pooledCount
  }

  /// Ends the pooled transactions that nobody has used since the last call, which gives their places in the lock file back.
  ///
  /// A slot that is free is marked as idle; the next to use it takes the mark away, as that leaves it free. So use costs
  /// nothing for it.
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

  /// How many slots this thread owns.
  func ownedCount(by thread: UInt) -> Int {
    var owned = 0
    for index in used where slots[index].owner.load(ordering: .relaxed) == thread { owned += 1 }
    return owned
  }

  /// Waits until nobody owns a slot; false if that takes more than so many nanoseconds. The gate must be closed.
  ///
  /// It polls: to be woken would need a fence on every read, and reads take microseconds.
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
