import CacheActivity
import CacheModel
import FleetRedis
import Glibc
import Synchronization
import SystemFiles

/// The state of a machine in its fleet: a file that all processes of the machine map.
///
/// The first page has the words of ``FleetFileLayout``. The ``UnpostedRemovals`` follow, and then a ring of the latest
/// purges, in slots of 512 bytes: the number, with that of the epoch in the upper 16 bits; the size of the removal in
/// 16 bits, the lower half of the number in 32, the epoch in 16; the ID; the removal.
///
/// Only the follower's process writes, except at opening, in ``revokeLease()``, and in
/// ``UnpostedRemovals/announce(_:)`` and ``UnpostedRemovals/handOver(_:)``. A process that was suspended while it
/// followed may go on at any step after another one has taken over, so each step is harmless then.
///
/// `@unchecked Sendable`: the mapping and the descriptors are constant; the words that change are atomic; a slot counts
/// only if its number is the same before and after it was copied.
final class FleetFile: @unchecked Sendable {
  typealias Offset = FleetFileLayout.Offset
  private static let headerByteCount = FleetFileLayout.headerByteCount
  static let slotByteCount = 512
  static let ringOffset = headerByteCount + UnpostedRemovals.byteCount
  static let slotCount: UInt64 = 16_384

  let file: LockDescriptor
  private let follower: LockDescriptor
  let memory: UnsafeMutableRawPointer
  /// The removals of this machine that other machines may not obey yet.
  let unposted: UnpostedRemovals
  /// Whether the directory was found to be a copy of another machine's when this object opened it.
  private(set) var isCopy = false
  /// The generation under which this process follows; -1 if it does not.
  private let generation = Atomic<Int>(-1)
  /// Whether this process took over from one that had not ended.
  private let takenOver = Atomic(false)

  private static var byteCount: Int { ringOffset + Int(slotCount) * slotByteCount }

  /// Opens or creates the file of a directory.
  ///
  /// - Throws: `RedisTierError` if the files cannot be used, or the directory belongs to another fleet.
  init(directory: String, settings: FleetSettings) throws(RedisTierError) {
    let flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW
    guard let file = LockDescriptor(directory + "/" + FleetFileLayout.fileName, flags, mode: 0o600),
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
      guard isAlone else { throw Self.otherVersion }
      guard ftruncate(file.number, 0) == 0 else { throw Self.failed("ftruncate") }
      // A write to a mapped page that needs a block would raise a signal on a full disk.
      let code = MappedFileBlocks.allocateEmptyFile(file.number, byteCount: Self.ringOffset)
      guard code == 0 else { throw Self.failed("posix_fallocate", code) }
      guard ftruncate(file.number, off_t(Self.byteCount)) == 0 else { throw Self.failed("ftruncate") }
    } else if isAlone {
      let code = MappedFileBlocks.takeOwn(file.number, byteCount: Self.ringOffset)
      guard code == 0 else { throw Self.failed("allocating disk space", code) }
    }
    let memory = mmap(nil, Self.byteCount, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0)
    guard let memory, memory != MAP_FAILED else { throw Self.failed("mmap") }
    self.memory = memory
    unposted = UnpostedRemovals(at: memory + Self.headerByteCount, in: file)
    let fleet = settings.fleetDigest
    if isNew || word(Offset.magic) != FleetFileLayout.magic {
      guard isAlone else { throw Self.otherVersion }
      memset(memory, 0, Self.ringOffset)
      set(Offset.fleet, fleet.high)
      set(Offset.fleet + 8, fleet.low)
      set(Offset.inode, UInt64(status.st_ino))
      set(Offset.device, UInt64(status.st_dev))
      set(Offset.magic, FleetFileLayout.magic)
      makeNodeID()
    }
    guard word(Offset.fleet) == fleet.high, word(Offset.fleet + 8) == fleet.low else {
      throw Self.unusable("the directory belongs to another fleet or server")
    }
    let isPresentBoot = checkBoot(try Self.bootID())
    if isAlone {
      checkIdentity(status, isPresentBoot: isPresentBoot)
      unposted.releaseUnusedSlots()
    }
    while flock(file.number, LOCK_SH) != 0 {
      guard errno == EINTR else { throw Self.failed("flock") }
    }
  }

  deinit {
    munmap(memory, Self.byteCount)
  }

  static func unusable(_ reason: String) -> RedisTierError { RedisTierError(.unusableDirectory, reason) }

  static func failed(_ call: String, _ code: CInt = errno) -> RedisTierError {
    unusable("\(call) failed for the fleet's files: \(String(cString: strerror(code)))")
  }

  private static var otherVersion: RedisTierError {
    unusable("a process with another version of this library uses the directory")
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

  func word(_ offset: Int) -> UInt64 { (memory + offset).loadUnaligned(as: UInt64.self) }
  func set(_ offset: Int, _ value: UInt64) { (memory + offset).storeBytes(of: value, as: UInt64.self) }

  func atomic(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (memory + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// Ends the lease and changes the machine's ID after a restart. Returns false then.
  ///
  /// The boot clock began again, and another copy of the directory may run elsewhere.
  private func checkBoot(_ boot: [UInt8]) -> Bool {
    let stored = [UInt8](UnsafeRawBufferPointer(start: memory + Offset.boot, count: boot.count))
    guard stored != boot else { return true }
    atomic(Offset.deadline).pointee.store(0, ordering: .sequentiallyConsistent)
    for offset in [Offset.followed, Offset.followerProcess, Offset.revoked, Offset.failure] {
      atomic(offset).pointee.store(0, ordering: .sequentiallyConsistent)
    }
    makeNodeID()
    // After a power failure slots may be lost, so the ring begins after the position.
    atomic(Offset.ringFloor).pointee.store(tag & Self.cursorMask, ordering: .sequentiallyConsistent)
    unposted.resume()
    boot.withUnsafeBytes { (memory + Offset.boot).copyMemory(from: $0.baseAddress!, byteCount: boot.count) }
    return false
  }

  /// Makes a copied directory another machine, which joins as if it were new: with another ID, without a lease, and
  /// without a position, because the files were not copied at one moment. Call this while no other process uses it.
  private func checkIdentity(_ status: stat, isPresentBoot: Bool) {
    // The number of a device can change when the file system is mounted again after a restart.
    let isOriginal =
      word(Offset.inode) == UInt64(status.st_ino)
      && (word(Offset.device) == UInt64(status.st_dev) || !isPresentBoot)
    if !isOriginal {
      isCopy = true
      atomic(Offset.deadline).pointee.store(0, ordering: .sequentiallyConsistent)
      atomic(Offset.revoked).pointee.store(0, ordering: .sequentiallyConsistent)
      set(Offset.owner, 0)
      makeNodeID()
      unposted.resume()
    }
    set(Offset.inode, UInt64(status.st_ino))
    set(Offset.device, UInt64(status.st_dev))
  }

  /// Reads the ID of the present boot.
  ///
  /// Without one, a lease of an earlier boot could count as valid, so it throws.
  static func bootID(path: String = "/proc/sys/kernel/random/boot_id") throws(RedisTierError) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: FleetFileLayout.bootByteCount)
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

  private static let generationMask = FleetFileLayout.generationMask
  /// The deadline of the lease, and the generation of the process that follows.
  private var leaseWord: UnsafeMutablePointer<Atomic<UInt64>> { atomic(Offset.deadline) }

  /// The lease, which keeps the file mapped. The generation makes it at most 66 µs longer than ``deadline``.
  var lease: MachineLease { MachineLease(deadline: leaseWord, in: self) }

  /// The end of the lease; 0 if it was revoked, or there was none.
  var deadline: UInt64 { leaseWord.pointee.load(ordering: .acquiring) & ~Self.generationMask }

  var isLeaseValid: Bool {
    let deadline = deadline
    return BootClock.now < deadline
  }

  /// Extends the lease, unless it lasts longer. Returns false if another process has taken over.
  func extendLease(to deadline: UInt64) -> Bool {
    guard let generation = currentGeneration else { return false }
    let unit = Self.generationMask + 1
    guard deadline > 2 * unit else { return true }
    // One unit earlier, so that the generation does not make it longer than it may be.
    let extended = (deadline & ~Self.generationMask) - unit | generation
    return replaceLeaseWord(ofGeneration: generation) { max($0, extended) }
  }

  /// Ends the lease for all processes of the machine.
  ///
  /// - Parameter isLeaving: Whether the machine leaves its fleet. Otherwise it counts as cut off from now on.
  func revokeLease(isLeaving: Bool = false) {
    let old = leaseWord.pointee.bitwiseAnd(Self.generationMask, ordering: .sequentiallyConsistent).oldValue
    if isLeaving {
      atomic(Offset.revoked).pointee.store(0, ordering: .releasing)
    } else if old & ~Self.generationMask > 0 {
      atomic(Offset.revoked).pointee.store(min(old, BootClock.now), ordering: .releasing)
    }
  }

  /// Replaces the word unless it has another generation.
  private func replaceLeaseWord(ofGeneration generation: UInt64, by change: (UInt64) -> UInt64) -> Bool {
    var old = leaseWord.pointee.load(ordering: .acquiring)
    while old & Self.generationMask == generation {
      let result = leaseWord.pointee.compareExchange(
        expected: old, desired: change(old), ordering: .sequentiallyConsistent)
      if result.exchanged { return true }
      old = result.original
    }
    return false
  }

  // MARK: The follower

  private var currentGeneration: UInt64? {
    let generation = generation.load(ordering: .acquiring)
    return generation < 0 ? nil : UInt64(generation)
  }

  /// Whether this process follows the fleet, and no other process has taken over.
  var isFollower: Bool { currentGeneration == leaseWord.pointee.load(ordering: .acquiring) & Self.generationMask }

  /// Makes this process the follower if no other process is, or if the one that is has not called ``noteFollowing()``
  /// for some time: then it is suspended, or waits for something.
  ///
  /// Each generation of followers locks a byte of its own, so that a suspended process keeps no other from following.
  ///
  /// - Parameter silence: That time in nanoseconds.
  /// - Returns: Whether this process follows from now on.
  func becomeFollower(afterSilence silence: UInt64 = .max) -> Bool {
    let present = leaseWord.pointee.load(ordering: .acquiring) & Self.generationMask
    takenOver.store(false, ordering: .relaxed)
    if follower.lockBytes(Self.lock(of: present)) { return follow(present) }
    let next = (present + 1) & Self.generationMask
    guard timeSinceFollowing > silence, follower.lockBytes(Self.lock(of: next)) else { return false }
    guard replaceLeaseWord(ofGeneration: present, by: { $0 & ~Self.generationMask | next }) else {
      follower.unlockBytes(Self.lock(of: next))
      return false
    }
    takenOver.store(true, ordering: .relaxed)
    return follow(next)
  }

  /// Whether this process has taken over from one that has not ended.
  var hasTakenOver: Bool { takenOver.load(ordering: .relaxed) }

  private func follow(_ generation: UInt64) -> Bool {
    self.generation.store(Int(generation), ordering: .releasing)
    // Another process may have taken over before the lock was there.
    guard isFollower else {
      stopFollowing()
      return false
    }
    noteFollowing()
    atomic(Offset.followerProcess).pointee.store(UInt64(getpid()), ordering: .releasing)
    return true
  }

  func stopFollowing() {
    guard let generation = currentGeneration else { return }
    self.generation.store(-1, ordering: .releasing)
    follower.unlockBytes(Self.lock(of: generation))
  }

  /// Notes that this process follows, if it does, so that no other takes over.
  func noteFollowing() {
    if isFollower { atomic(Offset.followed).pointee.store(BootClock.now, ordering: .releasing) }
  }

  /// The time in nanoseconds since the last call of ``noteFollowing()`` by any process that followed.
  var timeSinceFollowing: UInt64 {
    let last = atomic(Offset.followed).pointee.load(ordering: .acquiring)
    return max(BootClock.now, last) - last
  }

  /// The process that follows, or did so last; 0 if there was none.
  var followerProcessID: UInt64 { atomic(Offset.followerProcess).pointee.load(ordering: .acquiring) }

  /// The byte of the follower's file that a generation locks. The lock also ends if the process is killed.
  private static func lock(of generation: UInt64) -> Range<Int> { Int(generation)..<Int(generation) + 1 }

  /// Whether no other process has the file open. Then this process keeps others from opening it.
  func excludeOthers() -> Bool { flock(file.number, LOCK_EX | LOCK_NB) == 0 }

  /// Tells other programs why the fleet cannot be followed; nil if it can.
  func setFailure(_ text: String?) {
    let count = atomic(Offset.failure)
    guard isFollower, text != nil || count.pointee.load(ordering: .relaxed) != 0 else { return }
    let bytes = Array((text ?? "").utf8.prefix(FleetFileLayout.maximumFailureByteCount))
    // Readers copy the page, so the count is stored last.
    count.pointee.store(0, ordering: .sequentiallyConsistent)
    UnsafeMutableRawBufferPointer(
      start: memory + Offset.failure + 8, count: FleetFileLayout.maximumFailureByteCount
    ).copyBytes(from: bytes)
    count.pointee.store(UInt64(bytes.count), ordering: .sequentiallyConsistent)
  }
}
