import CachingClient
import Glibc
import LMDB
import ResponseStore
import Synchronization

/// The removals of a machine that its follower has not received from the fleet's log: a part of the fleet file.
///
/// While there is one, no process of the machine uses a response of another machine. The process that removes also posts;
/// if it does not, for example because Redis is unreachable or the process was killed, the follower posts.
///
/// Bit sets show the used slots. A removal is complete when its bit is set in `pending`.
struct UnpostedRemovals {
  /// Bit sets have one word for 64 slots.
  private static let wordCount = 16
  /// The maximum number of removals that are kept one by one. Beyond, the follower posts a removal of everything.
  static let slotCount = wordCount * 64
  private static let slotByteCount = 512
  private static let firstSlot = 4096
  static let byteCount = firstSlot + slotCount * slotByteCount
  /// For how long the process that announced a removal may take to post it, in nanoseconds.
  private static let postingTime: UInt64 = 2_000_000_000

  private enum Offset {
    /// The number of removals without a slot.
    static let overflow = 0
    /// How many of them a removal of everything has covered.
    static let coveredOverflow = 64
    static let pending = 128
    static let claimed = 256
  }

  private let memory: UnsafeMutableRawPointer
  private let file: LockDescriptor

  init(at memory: UnsafeMutableRawPointer, in file: LockDescriptor) {
    self.memory = memory
    self.file = file
  }

  // MARK: Announcing

  /// Announces removals of this machine, which are about to be carried out and then posted.
  ///
  /// Call this before the removal. Then a response that is stored under a removal token of after it is not an older one
  /// from Redis.
  func announce(_ removals: [FleetRemoval]) -> [AnnouncedRemoval] {
    removals.map { removal in
      let id = RandomID()
      let scope = removal.scope.encodedBytes
      guard scope.count <= FleetFile.maximumScopeByteCount, let index = claimSlot() else {
        overflow.pointee.add(1, ordering: .sequentiallyConsistent)
        return AnnouncedRemoval(removal, id: id.bytes, slot: nil)
      }
      let slot = slot(index)
      let kind: UInt64 = removal.effect == .remove ? 0 : 1
      slot.storeBytes(of: UInt64(scope.count) << 16 | kind, toByteOffset: 8, as: UInt64.self)
      UnsafeMutableRawBufferPointer(start: slot + 16, count: 16).copyBytes(from: id.bytes)
      UnsafeMutableRawBufferPointer(start: slot + 32, count: scope.count).copyBytes(from: scope)
      time(index).pointee.store(BootClock.now, ordering: .releasing)
      word(Offset.pending, index).pointee.bitwiseOr(Self.bit(index), ordering: .sequentiallyConsistent)
      return AnnouncedRemoval(removal, id: id.bytes, slot: index)
    }
  }

  /// Leaves removals to the follower, and makes them durable.
  func handOver(_ removals: [AnnouncedRemoval]) {
    for removal in removals { slot(of: removal).map { time($0).pointee.store(0, ordering: .releasing) } }
    makeDurable(removals)
  }

  /// Syncs unposted removals, so that they survive a power failure.
  func makeDurable(_ removals: [AnnouncedRemoval]) {
    guard overflowCount != nil || removals.contains(where: { slot(of: $0) != nil }) else { return }
    // If this fails, the removals hold on this machine, but a power failure may lose their slots.
    fdatasync(file.number)
  }

  /// The slot of a removal; nil if the slot is free, or has another removal, by now.
  private func slot(of removal: AnnouncedRemoval) -> Int? {
    removal.slot.flatMap { isPending($0) && id($0) == removal.id ? $0 : nil }
  }

  // MARK: Lookups

  /// Whether responses in Redis may be covered by removals of this machine that its follower has not received.
  ///
  /// Read this before the lease and the position: a removal that is not found here is within them.
  var isEmpty: Bool {
    for index in stride(from: 0, to: Self.slotCount, by: 64)
    where word(Offset.pending, index).pointee.load(ordering: .sequentiallyConsistent) != 0 { return false }
    return overflowCount == nil
  }

  // MARK: Following

  /// The removals that the follower must post, because no other process does.
  func overdue() -> [AnnouncedRemoval] {
    let now = BootClock.now
    var removals: [AnnouncedRemoval] = []
    forEach { index in
      let time = time(index).pointee.load(ordering: .acquiring)
      guard time == 0 || now > time + Self.postingTime else { return }
      removals.append(removal(index) ?? AnnouncedRemoval(FleetRemoval(.everything), id: id(index), slot: index))
    }
    return removals
  }

  /// The number of removals that had no slot; nil if a removal of everything has covered them.
  var overflowCount: UInt64? {
    // This order: a removal that overflows in between counts.
    let covered = coveredOverflow.pointee.load(ordering: .sequentiallyConsistent)
    let count = overflow.pointee.load(ordering: .sequentiallyConsistent)
    return count == covered ? nil : count
  }

  /// Forgets the removals of purges that the follower has received.
  ///
  /// Call this after ``FleetFile/announce(upTo:)``: from then on shared responses are checked against these purges.
  ///
  /// - Parameter overflow: The ``overflowCount`` before a removal of everything was posted that has been received.
  func forget(_ ids: Set<RandomID>, overflow count: UInt64?) {
    if let count { coveredOverflow.pointee.max(count, ordering: .sequentiallyConsistent) }
    forEach { index in
      guard ids.contains(RandomID(bytes: id(index))) else { return }
      word(Offset.pending, index).pointee.bitwiseAnd(~Self.bit(index), ordering: .sequentiallyConsistent)
      word(Offset.claimed, index).pointee.bitwiseAnd(~Self.bit(index), ordering: .sequentiallyConsistent)
    }
  }

  // MARK: Opening

  /// Releases the slots that a process claimed when it was killed: its removals had not begun. Call this while no other
  /// process uses the file.
  func releaseUnusedSlots() {
    for index in stride(from: 0, to: Self.slotCount, by: 64) {
      let used = word(Offset.pending, index).pointee.load(ordering: .sequentiallyConsistent)
      word(Offset.claimed, index).pointee.store(used, ordering: .sequentiallyConsistent)
    }
  }

  /// Leaves all removals to the follower after a restart of the machine.
  ///
  /// Forgets those whose slots did not reach the disk before a power failure; their calls had not returned.
  func resume() {
    forEach { index in
      time(index).pointee.store(0, ordering: .sequentiallyConsistent)
      guard removal(index) == nil else { return }
      word(Offset.pending, index).pointee.bitwiseAnd(~Self.bit(index), ordering: .sequentiallyConsistent)
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

  private func isPending(_ index: Int) -> Bool {
    word(Offset.pending, index).pointee.load(ordering: .sequentiallyConsistent) & Self.bit(index) != 0
  }

  /// When a removal was announced, by the boot clock; 0 if no other process posts it.
  private func time(_ index: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    atomic(Self.firstSlot + index * Self.slotByteCount)
  }

  private func id(_ index: Int) -> [UInt8] { Array(UnsafeRawBufferPointer(start: slot(index) + 16, count: 16)) }

  /// The removal in a slot; nil if it is torn, or of a later version.
  private func removal(_ index: Int) -> AnnouncedRemoval? {
    let slot = UnsafeRawBufferPointer(start: slot(index), count: Self.slotByteCount)
    let word = slot.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
    guard word >> 16 <= UInt64(FleetFile.maximumScopeByteCount),
      let scope = RemovalScope(encodedBytes: slot[32..<32 + Int(word >> 16)])
    else { return nil }
    return AnnouncedRemoval(FleetRemoval(scope, isSoft: word & 1 == 1), id: id(index), slot: index)
  }

  private func forEach(_ body: (Int) -> Void) {
    for first in stride(from: 0, to: Self.slotCount, by: 64) {
      var left = word(Offset.pending, first).pointee.load(ordering: .sequentiallyConsistent)
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
        used = claimed.pointee.bitwiseOr(Self.bit(index), ordering: .sequentiallyConsistent).oldValue
        if used & Self.bit(index) == 0 { return index }
      }
    }
    return nil
  }
}
