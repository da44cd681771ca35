import CXXHash
import Glibc
import LMDB
import ResponseStore
import Synchronization

/// The state of a machine in its fleet: a file that all processes of the machine map.
///
/// The first page has the words below. The ``UnpostedRemovals`` follow, and then a ring of the latest purges, in slots of
/// 512 bytes. Only the follower's process writes, except at opening, in ``revokeLease()``, and in
/// ``UnpostedRemovals/announce(_:)`` and ``UnpostedRemovals/handOver(_:)``.
///
/// `@unchecked Sendable`: the mapping and the descriptors are constant; the words that change are atomic; a slot counts
/// only if its number is the same before and after it was copied.
final class FleetFile: @unchecked Sendable {
  private static let magic = UInt64(littleEndian: 0x3254_4C46_4352_4C4D)
  private static let headerByteCount = 4096
  private static let slotByteCount = 512
  private static let ringOffset = headerByteCount + UnpostedRemovals.byteCount
  static let slotCount: UInt64 = 16_384
  private static let epochCount = 16
  private static let epochByteCount = 64

  private enum Offset {
    static let magic = 0
    static let owner = 8
    static let node = 16
    static let boot = 32
    static let fleet = 80
    static let position = 128
    static let deadline = 192
    static let ringFloor = 256
    static let announced = 320
    static let epochs = 512
  }

  /// A point in the log of the fleet: an epoch and the number of a purge in it.
  struct Position: Hashable, Sendable {
    var epoch: [UInt8]
    /// The number of the epoch on this machine.
    var epochNumber: UInt64
    var cursor: UInt64
  }

  private let file: LockDescriptor
  private let follower: LockDescriptor
  private let memory: UnsafeMutableRawPointer
  /// The removals of this machine that its follower has not received from the log.
  let unposted: UnpostedRemovals

  private static var byteCount: Int { ringOffset + Int(slotCount) * slotByteCount }

  /// Opens or creates the file of a directory.
  ///
  /// - Throws: `RedisTierError` if the files cannot be used, or the directory belongs to another fleet.
  init(directory: String, settings: FleetSettings) throws(RedisTierError) {
    let flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW
    guard let file = LockDescriptor(directory + "/" + ResponseStore.fleetFileName, flags, mode: 0o600),
      let follower = LockDescriptor(directory + "/LMDBURLCache.follower", flags, mode: 0o600)
    else { throw Self.failed("open") }
    self.file = file
    self.follower = follower
    // Alone, so that two processes do not create it together.
    let isAlone = try Self.lockAlone(orInUse: file, settings)
    var status = stat()
    guard fstat(file.number, &status) == 0 else { throw Self.failed("fstat") }
    let isNew = status.st_size != Self.byteCount
    if isNew {
      guard ftruncate(file.number, 0) == 0, ftruncate(file.number, off_t(Self.byteCount)) == 0 else {
        throw Self.failed("ftruncate")
      }
      let code = posix_fallocate(file.number, 0, off_t(Self.ringOffset))
      guard code == 0 else { throw Self.failed("posix_fallocate", code) }
    }
    let memory = mmap(nil, Self.byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0)
    guard let memory, memory != MAP_FAILED else { throw Self.failed("mmap") }
    self.memory = memory
    unposted = UnpostedRemovals(at: memory + Self.headerByteCount, in: file)
    let fleet = settings.fleetDigest
    if isNew || word(Offset.magic) != Self.magic {
      memset(memory, 0, Self.ringOffset)
      set(Offset.fleet, fleet.high)
      set(Offset.fleet + 8, fleet.low)
      set(Offset.magic, Self.magic)
      makeNodeID()
    }
    guard word(Offset.fleet) == fleet.high, word(Offset.fleet + 8) == fleet.low else {
      throw Self.unusable("the directory belongs to another fleet or server")
    }
    checkBoot(try Self.bootID())
    if isAlone { unposted.releaseUnusedSlots() }
    while flock(file.number, LOCK_SH) != 0 {
      guard errno == EINTR else { throw Self.failed("flock") }
    }
  }

  deinit {
    munmap(memory, Self.byteCount)
  }

  private static func unusable(_ reason: String) -> RedisTierError { RedisTierError(.unusableDirectory, reason) }

  private static func failed(_ call: String, _ code: CInt = errno) -> RedisTierError {
    unusable("\(call) failed for the fleet's files: \(String(cString: strerror(code)))")
  }

  /// Locks the file exclusively, or shared if other processes use it, which have then created it.
  ///
  /// - Returns: Whether no other process uses it.
  private static func lockAlone(
    orInUse file: LockDescriptor, _ settings: FleetSettings
  ) throws(RedisTierError) -> Bool {
    // A machine that leaves the fleet keeps the lock while it connects and sends two commands.
    let deadline = BootClock.now + (.seconds(5) + settings.configuration.commandTimeout * 3).nanoseconds
    while flock(file.number, LOCK_EX | LOCK_NB) != 0 {
      if flock(file.number, LOCK_SH | LOCK_NB) == 0 { return false }
      guard BootClock.now < deadline else {
        throw unusable("another process has held the lock of the fleet file for too long")
      }
      usleep(1000)
    }
    return true
  }

  // MARK: Words

  private func word(_ offset: Int) -> UInt64 { (memory + offset).loadUnaligned(as: UInt64.self) }
  private func set(_ offset: Int, _ value: UInt64) { (memory + offset).storeBytes(of: value, as: UInt64.self) }

  private func atomic(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (memory + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// Ends the lease and changes the machine's ID after a restart.
  ///
  /// The boot clock began again, and another copy of the directory may run elsewhere.
  private func checkBoot(_ boot: [UInt8]) {
    let stored = [UInt8](UnsafeRawBufferPointer(start: memory + Offset.boot, count: 40))
    guard stored != boot else { return }
    atomic(Offset.deadline).pointee.store(0, ordering: .sequentiallyConsistent)
    makeNodeID()
    // After a power failure slots may be lost, so the ring begins after the position.
    atomic(Offset.ringFloor).pointee.store(tag & Self.cursorMask, ordering: .sequentiallyConsistent)
    unposted.resume()
    boot.withUnsafeBytes { (memory + Offset.boot).copyMemory(from: $0.baseAddress!, byteCount: 40) }
  }

  /// Reads the ID of the present boot.
  ///
  /// Without one, a lease of an earlier boot could count as valid, so it throws.
  static func bootID(path: String = "/proc/sys/kernel/random/boot_id") throws(RedisTierError) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: 40)
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { throw unusable("open of \(path) failed: \(String(cString: strerror(errno)))") }
    defer { close(descriptor) }
    guard read(descriptor, &bytes, 36) == 36 else { throw unusable("\(path) does not have the ID of the boot") }
    return bytes
  }

  /// The ID of the machine's node.
  var node: RandomID { RandomID(bytes: UnsafeRawBufferPointer(start: memory + Offset.node, count: 16)) }

  /// Gives the machine another ID. Its lease must have ended.
  func makeNodeID() {
    RandomID().bytes.withUnsafeBytes { (memory + Offset.node).copyMemory(from: $0.baseAddress!, byteCount: 16) }
  }

  // MARK: The lease

  /// The lease, which keeps the file mapped.
  var lease: FleetLease { FleetLease(deadline: atomic(Offset.deadline), in: self) }

  var deadline: UInt64 { atomic(Offset.deadline).pointee.load(ordering: .acquiring) }

  var isLeaseValid: Bool {
    let deadline = deadline
    return BootClock.now < deadline
  }

  /// Extends the lease, unless it lasts longer.
  func extendLease(to deadline: UInt64) {
    atomic(Offset.deadline).pointee.max(deadline, ordering: .sequentiallyConsistent)
  }

  /// Ends the lease for all processes of the machine.
  func revokeLease() {
    atomic(Offset.deadline).pointee.store(0, ordering: .sequentiallyConsistent)
  }

  // MARK: The follower's lock

  /// Makes this process the follower, if no other process is.
  func becomeFollower() -> Bool { flock(follower.number, LOCK_EX | LOCK_NB) == 0 }

  func stopFollowing() { flock(follower.number, LOCK_UN) }

  /// Whether no other process has the file open. Then this process keeps others from opening it.
  func excludeOthers() -> Bool { flock(file.number, LOCK_EX | LOCK_NB) == 0 }

  // MARK: Position

  private static let epochShift: UInt64 = 48
  private static let cursorMask: UInt64 = 1 << epochShift - 1

  /// The position as a tag that fits into one word; read it before a request is sent.
  var tag: UInt64 { atomic(Offset.position).pointee.load(ordering: .acquiring) }

  /// The purges up to here are in the removal log of the store, durably. Nil for a directory that has never followed
  /// the log, or whose store was created again.
  func position(ofStore owner: UInt64) -> Position? {
    word(Offset.owner) == owner ? position(ofTag: tag) : nil
  }

  /// The epoch and the number of a tag; nil if the epoch is no longer known.
  func position(ofTag tag: UInt64) -> Position? {
    let count = tag >> Self.epochShift
    guard count > 0 else { return nil }
    let slot = memory + Offset.epochs + Int((count - 1) % UInt64(Self.epochCount)) * Self.epochByteCount
    let bytes = [UInt8](UnsafeRawBufferPointer(start: slot, count: Self.epochByteCount))
    let length = Int(bytes[0])
    guard length > 0, length < Self.epochByteCount - 8 else { return nil }
    // The count behind the text shows that the slot has not been used for a later epoch.
    let stored = bytes.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: Self.epochByteCount - 8, as: UInt64.self) }
    guard stored == count else { return nil }
    return Position(epoch: Array(bytes[1...length]), epochNumber: count, cursor: tag & Self.cursorMask)
  }

  /// Starts a new epoch. Call this when the removals up to `cursor` are durable.
  func begin(epoch: [UInt8], cursor: UInt64, ofStore owner: UInt64) -> Bool {
    guard epoch.count < Self.epochByteCount - 8, cursor <= Self.cursorMask else { return false }
    // After 65,535 epochs the count begins again: tags of the earlier ones have left the table.
    let count = (tag >> Self.epochShift) % (1 << 16 - 1) + 1
    let slot = memory + Offset.epochs + Int((count - 1) % UInt64(Self.epochCount)) * Self.epochByteCount
    var bytes = [UInt8](repeating: 0, count: Self.epochByteCount)
    bytes[0] = UInt8(epoch.count)
    bytes.replaceSubrange(1...epoch.count, with: epoch)
    bytes.withUnsafeMutableBytes { $0.storeBytes(of: count, toByteOffset: Self.epochByteCount - 8, as: UInt64.self) }
    bytes.withUnsafeBytes { slot.copyMemory(from: $0.baseAddress!, byteCount: $0.count) }
    // Numbers of the earlier epoch say nothing about this one.
    atomic(Offset.ringFloor).pointee.store(cursor, ordering: .sequentiallyConsistent)
    atomic(Offset.announced).pointee.store(count << Self.epochShift | cursor, ordering: .sequentiallyConsistent)
    atomic(Offset.position).pointee.store(count << Self.epochShift | cursor, ordering: .sequentiallyConsistent)
    set(Offset.owner, owner)
    return true
  }

  /// Moves the position to a purge whose removal is durable, as is every removal before it.
  func advance(to cursor: UInt64) {
    let position = tag & ~Self.cursorMask | cursor
    atomic(Offset.position).pointee.max(position, ordering: .sequentiallyConsistent)
  }

  /// Announces that the removals of purges up to `cursor` are about to be requested of the store.
  ///
  /// A removal counts in the store before it is durable, and the position moves only then. A response of another machine
  /// that is stored in between is not covered by the removal, so it must be checked against the purge. Call this after
  /// ``keep(_:)``.
  func announce(upTo cursor: UInt64) {
    let announced = tag & ~Self.cursorMask | cursor
    atomic(Offset.announced).pointee.max(announced, ordering: .sequentiallyConsistent)
  }

  /// Returns the number of the last purge of a position's epoch whose removal may count in the store; nil if another
  /// epoch began.
  ///
  /// It includes every purge whose removal is in a removal token that was read before this call.
  func lastAnnounced(inEpochOf known: Position) -> UInt64? {
    let position = atomic(Offset.position).pointee.load(ordering: .sequentiallyConsistent)
    let announced = atomic(Offset.announced).pointee.load(ordering: .sequentiallyConsistent)
    guard position >> Self.epochShift == known.epochNumber else { return nil }
    let isOfEpoch = announced >> Self.epochShift == known.epochNumber
    return max(position & Self.cursorMask, isOfEpoch ? announced & Self.cursorMask : 0)
  }

  // MARK: The ring of purges

  /// The maximum size of an encoded scope, as in the removal log.
  static let maximumScopeByteCount = 480

  /// Keeps a purge for ``scope(ofPurge:inEpoch:)``. Call this before ``announce(upTo:)``.
  func keep(_ purge: LogEntry) throws(RedisTierError) {
    guard purge.scope.count <= Self.maximumScopeByteCount else { throw Self.unusable("a purge is too long") }
    var bytes = [UInt8](repeating: 0, count: Self.slotByteCount)
    bytes[8] = UInt8(truncatingIfNeeded: purge.scope.count)
    bytes[9] = UInt8(truncatingIfNeeded: purge.scope.count >> 8)
    bytes.replaceSubrange(16..<32, with: purge.id.bytes)
    bytes.replaceSubrange(32..<32 + purge.scope.count, with: purge.scope)
    let count = tag >> Self.epochShift
    bytes.withUnsafeMutableBytes {
      $0.storeBytes(of: purge.number | count << Self.epochShift, as: UInt64.self)
    }
    // The number last, so that a reader finds no number with another purge's bytes.
    let offset = off_t(Self.ringOffset) + off_t(purge.number % Self.slotCount) * off_t(Self.slotByteCount)
    var none: UInt64 = 0
    // By `pwrite`, because storing to a hole of the mapping ends the process on a full disk.
    guard pwrite(file.number, &none, 8, offset) == 8,
      pwrite(file.number, Array(bytes[8...]), bytes.count - 8, offset + 8) == bytes.count - 8,
      pwrite(file.number, bytes, 8, offset) == 8
    else { throw Self.failed("pwrite") }
  }

  /// The ID of a purge of the present epoch; nil if the ring does not have it.
  func purgeID(_ number: UInt64) -> RandomID? {
    withSlot(of: number, inEpoch: tag >> Self.epochShift) { RandomID(bytes: $0[16..<32]) }
  }

  /// The scope of a purge of an epoch; nil if the ring no longer has it, or it is of a later version.
  func scope(ofPurge number: UInt64, inEpoch epoch: UInt64) -> RemovalScope? {
    guard number > atomic(Offset.ringFloor).pointee.load(ordering: .sequentiallyConsistent) else { return nil }
    return withSlot(of: number, inEpoch: epoch) { slot in
      let length = Int(slot[8]) | Int(slot[9]) << 8
      guard length <= Self.maximumScopeByteCount else { return nil }
      return RemovalScope(encodedBytes: slot[32..<32 + length])
    }
  }

  /// Calls `body` with the bytes of a purge's slot; nil if it has another purge, before or after the call.
  private func withSlot<Result>(
    of number: UInt64, inEpoch epoch: UInt64, _ body: (UnsafeRawBufferPointer) -> Result?
  ) -> Result? {
    let offset = Self.ringOffset + Int(number % Self.slotCount) * Self.slotByteCount
    let expected = number | epoch << Self.epochShift
    guard atomic(offset).pointee.load(ordering: .acquiring) == expected else { return nil }
    let result = body(UnsafeRawBufferPointer(start: memory + offset, count: Self.slotByteCount))
    atomicMemoryFence(ordering: .sequentiallyConsistent)
    return atomic(offset).pointee.load(ordering: .acquiring) == expected ? result : nil
  }
}
