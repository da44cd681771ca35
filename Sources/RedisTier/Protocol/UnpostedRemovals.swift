import CacheModel
import FleetRedis
import Glibc
import Synchronization
import SystemFiles

/// The removals of a machine that other machines may not obey yet: a part of the fleet file.
///
/// A removal is pending until the machine's follower has received it from the fleet's log. While one is, no process of
/// the machine uses a response of another machine. The process that removes also posts; if it does not, for example
/// because Redis is unreachable or the process was killed, the follower posts.
///
/// A received removal stays until each machine obeys it, or its lease has ended. If another epoch begins before, the
/// log may have lost it, and it is pending again. So it reaches the other machines even if its process has ended.
///
/// Bit sets show the used slots. A removal is complete when its bit is set in `pending` or `received`. A slot has the
/// time of the announcement, or 0 if the follower is to post it; the size of the removal; its ID; the removal.
struct UnpostedRemovals {
  /// Bit sets have one word for 64 slots.
  private static let wordCount = 64
  /// The maximum number of removals that are kept one by one. Beyond, the follower posts a removal of everything.
  static let slotCount = wordCount * 64 - 1
  /// The slot of that removal of everything.
  private static let everythingSlot = slotCount
  private static let slotByteCount = 512
  private static let firstReceipt = 4096
  /// For each slot the tag of the received purge, and the time of its receipt by the boot clock.
  private static let receiptByteCount = 16
  private static let firstSlot = firstReceipt + wordCount * 64 * receiptByteCount
  static let byteCount = firstSlot + wordCount * 64 * slotByteCount
  /// For how long the process that announced a removal may take to post it, in nanoseconds.
  private static let postingTime: UInt64 = 2_000_000_000

  private enum Offset {
    /// The number of removals without a slot.
    static let overflow = 0
    /// How many of them a removal of everything has covered.
    static let coveredOverflow = 64
    static let pending = 128
    static let received = pending + 8 * wordCount
    static let claimed = received + 8 * wordCount
  }

  private let memory: UnsafeMutableRawPointer
  private let file: LockDescriptor

  init(at memory: UnsafeMutableRawPointer, in file: LockDescriptor) {
    self.memory = memory
    self.file = file
  }

  // MARK: Announcing

  /// Announces a removal of this machine, which is about to be carried out and then posted.
  ///
  /// Call this before the removal. Then a response that is stored under a removal token of after it is not an older one
  /// from Redis.
  func announce(_ removal: Removal) -> Purge {
    let purge = Purge(removal: removal)
    if let index = claimSlot() {
      write(purge, time: BootClock.now, to: index)
    } else {
      overflow.pointee.add(1, ordering: .sequentiallyConsistent)
    }
    return purge
  }

  /// Makes a removal pending in a claimed slot.
  private func write(_ purge: Purge, time now: UInt64, to index: Int) {
    let removal = purge.removal.encoded
    let slot = slot(index)
    slot.storeBytes(of: UInt64(removal.count), toByteOffset: 8, as: UInt64.self)
    UnsafeMutableRawBufferPointer(start: slot + 16, count: 16).copyBytes(from: purge.id.bytes)
    UnsafeMutableRawBufferPointer(start: slot + 32, count: removal.count).copyBytes(from: removal)
    time(index).pointee.store(now, ordering: .releasing)
    insert(index, into: Offset.pending)
  }

  /// Leaves removals to the follower, and makes them durable.
  func handOver(_ purges: [Purge]) {
    for index in slots(of: purges) { time(index).pointee.store(0, ordering: .releasing) }
    makeDurable(purges)
  }

  /// Syncs removals that not all machines obey, so that they survive a power failure.
  func makeDurable(_ purges: [Purge]) {
    guard overflowCount != nil || !slots(of: purges).isEmpty else { return }
    // If this fails, the removals hold on this machine, but a power failure may lose their slots.
    fdatasync(file.number)
  }

  /// The slots of removals, except those that had none, or are obeyed by all machines by now.
  func slots(of purges: [Purge]) -> [Int] {
    let ids = Set(purges.map(\.id))
    var slots: Set<Int> = []
    for set in [Offset.pending, Offset.received] {
      forEach(in: set) { if ids.contains(id($0)) { slots.insert($0) } }
    }
    return slots.sorted()
  }

  // MARK: Lookups

  /// Whether responses in Redis may be covered by removals of this machine that its follower has not received.
  ///
  /// Read this before the lease and the position: a removal that is not found here is within them.
  var hasPending: Bool { !isEmpty(Offset.pending) || overflowCount != nil }

  // MARK: Following

  /// The removals that the follower must post, because no other process does.
  func overdue() -> [Purge] {
    coverOverflow()
    let now = BootClock.now
    var purges: [Purge] = []
    forEach(in: Offset.pending) { index in
      let time = time(index).pointee.load(ordering: .acquiring)
      guard time == 0 || now > time + Self.postingTime else { return }
      purges.append(Purge(id: id(index), removal: removal(index) ?? Removal(.everything)))
    }
    return purges
  }

  /// The number of removals that had no slot; nil if a removal of everything covers them.
  private var overflowCount: UInt64? {
    // This order: a removal that overflows in between counts.
    let covered = coveredOverflow.pointee.load(ordering: .sequentiallyConsistent)
    let count = overflow.pointee.load(ordering: .sequentiallyConsistent)
    return count == covered ? nil : count
  }

  /// Announces a removal of everything for the removals that had no slot, unless the last one is still pending.
  private func coverOverflow() {
    guard let count = overflowCount, !contains(Self.everythingSlot, in: Offset.pending) else { return }
    // Pending first, so that there is no moment without unposted removals.
    write(Purge(removal: Removal(.everything)), time: 0, to: Self.everythingSlot)
    coveredOverflow.pointee.max(count, ordering: .sequentiallyConsistent)
  }

  /// Notes that the follower has received the purges that follow a number in the log.
  ///
  /// Call this after ``FleetFile/announce(upTo:inEpoch:)``: from then on shared responses are checked against them.
  func noteReceived(_ purges: [Purge], after cursor: UInt64, inEpoch epoch: UInt64) {
    var numbers: [RandomID: UInt64] = [:]
    forEach(in: Offset.pending) { index in
      if numbers.isEmpty {
        numbers = Dictionary(zip(purges.map(\.id), (cursor + 1)...), uniquingKeysWith: { first, _ in first })
      }
      guard let number = numbers[id(index)] else { return }
      receipt(index).pointee.store(FleetFile.tag(epoch, number), ordering: .relaxed)
      receiptTime(index).pointee.store(BootClock.now, ordering: .relaxed)
      insert(index, into: Offset.received)
      remove(index, from: Offset.pending)
    }
  }

  /// Whether a removal has been received, and waits until all machines obey it.
  var hasReceived: Bool { !isEmpty(Offset.received) }

  /// Forgets the received removals that all machines obey, and makes those pending again whose epoch has ended.
  ///
  /// - Parameters:
  ///   - epoch: The epoch of the machine, in which a renewal was answered.
  ///   - confirmed: The number of the last purge that all machines have confirmed, if none can have a lease of an
  ///     earlier epoch; otherwise 0.
  ///   - start: When the renewal was sent. A removal that was received longer ago than `wait` was in the log all the
  ///     time, so no machine has a lease from before it.
  func settle(inEpoch epoch: UInt64, confirmedUpTo confirmed: UInt64, renewedAt start: UInt64, wait: UInt64) {
    forEach(in: Offset.received) { index in
      guard !contains(index, in: Offset.pending) else { return }
      let tag = receipt(index).pointee.load(ordering: .relaxed)
      if FleetFile.epochNumber(ofTag: tag) != epoch {
        // The process that posted it may be gone, so the follower posts it at once.
        time(index).pointee.store(0, ordering: .releasing)
        insert(index, into: Offset.pending)
        remove(index, from: Offset.received)
      } else if tag & FleetFile.cursorMask <= confirmed
        || start >= receiptTime(index).pointee.load(ordering: .relaxed) + wait
      {
        release(index)
      }
    }
  }

  private func release(_ index: Int) {
    remove(index, from: Offset.pending)
    remove(index, from: Offset.received)
    remove(index, from: Offset.claimed)
  }

  // MARK: Opening

  /// Releases the slots that a process claimed when it was killed: its removals had not begun. Call this while no other
  /// process uses the file.
  func releaseUnusedSlots() {
    for first in stride(from: 0, through: Self.slotCount, by: 64) {
      let used = load(Offset.pending, first) | load(Offset.received, first)
      word(Offset.claimed, first).pointee.store(used, ordering: .sequentiallyConsistent)
    }
  }

  /// Leaves all removals to the follower after a restart of the machine, or in a copied directory.
  ///
  /// Forgets those whose slots did not reach the disk before a power failure; their calls had not returned.
  func resume() {
    // The times of receipt are of another boot, or the follower of another machine received them.
    forEach(in: Offset.received) { index in
      insert(index, into: Offset.pending)
      remove(index, from: Offset.received)
    }
    forEach(in: Offset.pending) { index in
      time(index).pointee.store(0, ordering: .sequentiallyConsistent)
      if removal(index) == nil { remove(index, from: Offset.pending) }
    }
  }

  // MARK: Slots

  private static func bit(_ index: Int) -> UInt64 { 1 << UInt64(index % 64) }

  private func atomic(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (memory + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  private var overflow: UnsafeMutablePointer<Atomic<UInt64>> { atomic(Offset.overflow) }
  private var coveredOverflow: UnsafeMutablePointer<Atomic<UInt64>> { atomic(Offset.coveredOverflow) }

  /// The word of a bit set that has the bit of a slot.
  private func word(_ offset: Int, _ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    atomic(offset + index / 64 * 8)
  }

  private func slot(_ index: Int) -> UnsafeMutableRawPointer { memory + Self.firstSlot + index * Self.slotByteCount }

  private func receipt(_ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    atomic(Self.firstReceipt + index * Self.receiptByteCount)
  }

  private func receiptTime(_ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    atomic(Self.firstReceipt + index * Self.receiptByteCount + 8)
  }

  /// When a removal was announced, by the boot clock; 0 if no other process posts it.
  private func time(_ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    atomic(Self.firstSlot + index * Self.slotByteCount)
  }

  private func id(_ index: Int) -> RandomID {
    RandomID(bytes: UnsafeRawBufferPointer(start: slot(index) + 16, count: 16))
  }

  /// The removal in a slot; nil if it is torn.
  private func removal(_ index: Int) -> Removal? {
    let slot = UnsafeRawBufferPointer(start: slot(index), count: Self.slotByteCount)
    let count = slot.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
    guard count <= UInt64(Removal.maximumByteCount) else { return nil }
    return Removal(encoded: UnsafeRawBufferPointer(rebasing: slot[32..<32 + Int(count)]))
  }

  // MARK: Bit sets

  private func load(_ set: Int, _ index: Int) -> UInt64 {
    word(set, index).pointee.load(ordering: .sequentiallyConsistent)
  }

  private func contains(_ index: Int, in set: Int) -> Bool { load(set, index) & Self.bit(index) != 0 }

  private func insert(_ index: Int, into set: Int) {
    word(set, index).pointee.bitwiseOr(Self.bit(index), ordering: .sequentiallyConsistent)
  }

  private func remove(_ index: Int, from set: Int) {
    word(set, index).pointee.bitwiseAnd(~Self.bit(index), ordering: .sequentiallyConsistent)
  }

  private func isEmpty(_ set: Int) -> Bool {
    stride(from: 0, through: Self.slotCount, by: 64).allSatisfy { load(set, $0) == 0 }
  }

  private func forEach(in set: Int, _ body: (Int) -> Void) {
    for first in stride(from: 0, through: Self.slotCount, by: 64) {
      var left = load(set, first)
      while left != 0 {
        body(first + left.trailingZeroBitCount)
        left &= left - 1
      }
    }
  }

  /// Claims a free slot; nil if there is none.
  private func claimSlot() -> Int? {
    for first in stride(from: 0, to: Self.slotCount, by: 64) {
      let claimed = word(Offset.claimed, first)
      var used = claimed.pointee.load(ordering: .relaxed)
      while used != .max {
        let index = first + (~used).trailingZeroBitCount
        guard index < Self.everythingSlot else { return nil }
        used = claimed.pointee.bitwiseOr(Self.bit(index), ordering: .sequentiallyConsistent).oldValue
        if used & Self.bit(index) == 0 { return index }
      }
    }
    return nil
  }
}
