internal import CLMDB
internal import Glibc
internal import Synchronization

/// The slots of an environment: as many as it may have simultaneous read transactions.
///
/// The first `pooledCount` keep their transaction between uses, so that a read costs a renewal instead of an
/// allocation and a pass through LMDB's shared lock; the others are for crowds and give it back.
struct ReaderSlots: @unchecked Sendable {
  // Sendable: the pointer is constant, and a slot's contents are handed over through its atomic owner.
  private let slots: UnsafeMutablePointer<ReaderSlot>
  let count: Int
  let pooledCount: Int

  init(count: Int) {
    self.count = count
    // A pooled transaction holds one of the lock file's reader slots, so a process keeps only a few for each core.
    let cores = max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN)))
    pooledCount = min(count, max(16, 4 * cores))
    let byteCount = count * MemoryLayout<ReaderSlot>.stride
    let memory = UnsafeMutableRawPointer.allocate(byteCount: byteCount, alignment: 128)
    slots = memory.bindMemory(to: ReaderSlot.self, capacity: count)
    for index in 0..<count { (slots + index).initialize(to: ReaderSlot()) }
  }

  /// Ends the pooled transactions. Nobody may own a slot, or get past the gate, any more.
  func endTransactions() {
    for index in 0..<count {
      if let transaction = slots[index].transaction { mdb_txn_abort(transaction) }
      slots[index].transaction = nil
    }
  }

  /// Frees the memory. The transactions must have ended.
  func destroy() {
    slots.deinitialize(count: count)
    UnsafeMutableRawPointer(slots).deallocate()
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
    for offset in 0..<pooledCount {
      let index = (start + offset) % pooledCount
      if tryClaim(index, for: thread) {
        if !isNested { hint.pointee = UInt32(index + 1) }
        return slots + index
      }
    }
    for index in pooledCount..<count where tryClaim(index, for: thread) {
      return slots + index
    }
    return nil
  }

  /// Takes a free slot that has a transaction already; nil if there is none.
  func claimWithTransaction(for thread: UInt) -> UnsafeMutablePointer<ReaderSlot>? {
    for index in 0..<pooledCount where tryClaim(index, for: thread) {
      if slots[index].transaction != nil { return slots + index }
      release(slots + index)
    }
    return nil
  }

  private func tryClaim(_ index: Int, for thread: UInt) -> Bool {
    // Sequentially consistent, as is the look at the gate that follows: either this thread sees the gate closed, or
    // who closed it sees this slot in use.
    slots[index].owner.compareExchange(expected: 0, desired: thread, ordering: .sequentiallyConsistent).exchanged
  }

  func release(_ slot: UnsafeMutablePointer<ReaderSlot>) {
    slot.pointee.owner.store(0, ordering: .releasing)
  }

  /// Whether the slot keeps its transaction when it is given back.
  func isPooled(_ slot: UnsafeMutablePointer<ReaderSlot>) -> Bool {
    slot < slots + pooledCount
  }

  /// How many slots this thread owns.
  func ownedCount(by thread: UInt) -> Int {
    var owned = 0
    for index in 0..<count where slots[index].owner.load(ordering: .relaxed) == thread { owned += 1 }
    return owned
  }

  /// Waits until nobody owns a slot; false if that takes more than `maximumAttempts` looks. The gate must be closed.
  ///
  /// It polls: to be woken would need a fence on every read, and reads take microseconds.
  @discardableResult
  func waitUntilIdle(maximumAttempts: Int = .max) -> Bool {
    var attempts = 0
    for index in 0..<count {
      while slots[index].owner.load(ordering: .sequentiallyConsistent) != 0 {
        attempts += 1
        if attempts == maximumAttempts { return false }
        if attempts < 1000 { sched_yield() } else { usleep(50) }
      }
    }
    return true
  }
}
