import CacheModel
import FleetRedis
import Glibc
import Synchronization

/// The position of a machine in the log of its fleet, and the purges before it.
///
/// The steps name the epoch that they are of. If another process has taken over and begun another epoch, they do
/// nothing.
extension FleetFile {
  private static let epochCount: UInt64 = 16
  private static let epochByteCount = 64
  private static let epochShift: UInt64 = 48
  static let cursorMask: UInt64 = 1 << epochShift - 1

  /// The position as a tag that fits into one word; read it before a request is sent.
  var tag: UInt64 { atomic(Offset.position).pointee.load(ordering: .acquiring) }

  /// The tag of a purge in an epoch.
  static func tag(_ epochNumber: UInt64, _ number: UInt64) -> UInt64 { epochNumber << epochShift | number }

  /// The number on this machine of the epoch of a tag.
  static func epochNumber(ofTag tag: UInt64) -> UInt64 { tag >> epochShift }

  /// The purges up to a tag are in the removal log of the store, durably. Nil for a directory that has never followed
  /// the log, or whose store was created again.
  func position(ofTag tag: UInt64, ofStore owner: UInt64) -> LogPosition? {
    word(Offset.owner) == owner ? position(ofTag: tag) : nil
  }

  func position(ofStore owner: UInt64) -> LogPosition? { position(ofTag: tag, ofStore: owner) }

  private func epochSlot(_ number: UInt64) -> UnsafeMutableRawPointer {
    memory + Offset.epochs + Int((number - 1) % Self.epochCount) * Self.epochByteCount
  }

  /// The epoch and the number of a tag; nil if the epoch is no longer known.
  func position(ofTag tag: UInt64) -> LogPosition? {
    let number = Self.epochNumber(ofTag: tag)
    guard number > 0 else { return nil }
    let bytes = [UInt8](UnsafeRawBufferPointer(start: epochSlot(number), count: Self.epochByteCount))
    let length = Int(bytes[0])
    guard length > 0, length < Self.epochByteCount - 8 else { return nil }
    // The number behind the text shows that the slot has not been used for a later epoch.
    let stored = bytes.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: Self.epochByteCount - 8, as: UInt64.self) }
    guard stored == number else { return nil }
    return LogPosition(epoch: Array(bytes[1...length]), epochNumber: number, cursor: tag & Self.cursorMask)
  }

  /// Starts a new epoch. Call this when the removals up to `cursor` are durable.
  ///
  /// - Parameter old: The tag of the position that it follows.
  /// - Returns: The number of the epoch on this machine; nil if the epoch is malformed, or the position has changed.
  func begin(epoch: [UInt8], cursor: UInt64, ofStore owner: UInt64, replacing old: UInt64) -> UInt64? {
    guard epoch.count < Self.epochByteCount - 8, cursor <= Self.cursorMask else { return nil }
    // A number of its own, so that two processes that begin epochs at once do not write to one slot. After 65,535
    // epochs the numbers begin again: tags of the earlier ones have left the table.
    let count = atomic(Offset.begunEpochs).pointee.wrappingAdd(1, ordering: .sequentiallyConsistent).oldValue
    let number = count % (1 << 16 - 1) + 1
    var bytes = [UInt8](repeating: 0, count: Self.epochByteCount)
    bytes[0] = UInt8(epoch.count)
    bytes.replaceSubrange(1...epoch.count, with: epoch)
    bytes.withUnsafeMutableBytes { $0.storeBytes(of: number, toByteOffset: Self.epochByteCount - 8, as: UInt64.self) }
    bytes.withUnsafeBytes { epochSlot(number).copyMemory(from: $0.baseAddress!, byteCount: $0.count) }
    let new = number << Self.epochShift | cursor
    guard
      atomic(Offset.position).pointee.compareExchange(
        expected: old, desired: new, ordering: .sequentiallyConsistent
      ).exchanged
    else { return nil }
    atomic(Offset.ringFloor).pointee.store(cursor, ordering: .sequentiallyConsistent)
    // The purges that are announced so far are of other epochs.
    if number < Self.epochNumber(ofTag: old) {
      atomic(Offset.announced).pointee.store(new, ordering: .sequentiallyConsistent)
    } else {
      atomic(Offset.announced).pointee.max(new, ordering: .sequentiallyConsistent)
    }
    set(Offset.owner, owner)
    return number
  }

  /// Moves the position to a purge whose removal is durable, as is every removal before it.
  ///
  /// - Returns: Whether the position is in this epoch.
  func advance(to cursor: UInt64, inEpoch number: UInt64) -> Bool {
    let position = atomic(Offset.position)
    let new = number << Self.epochShift | cursor
    var old = position.pointee.load(ordering: .acquiring)
    while Self.epochNumber(ofTag: old) == number {
      let result = position.pointee.compareExchange(
        expected: old, desired: max(old, new), ordering: .sequentiallyConsistent)
      if result.exchanged { return true }
      old = result.original
    }
    return false
  }

  /// Announces that the removals of purges up to `cursor` are about to be requested of the store.
  ///
  /// A removal counts in the store before it is durable, and the position moves only then. A response of another
  /// machine that is stored in between is not covered by the removal, so it must be checked against the purge. Call
  /// this after ``keep(_:inEpoch:)``.
  func announce(upTo cursor: UInt64, inEpoch number: UInt64) {
    atomic(Offset.announced).pointee.max(number << Self.epochShift | cursor, ordering: .sequentiallyConsistent)
  }

  /// Returns the number of the last purge of a position's epoch whose removal may count in the store; nil if another
  /// epoch began.
  ///
  /// It includes every purge whose removal is in a removal token that was read before this call.
  func lastAnnounced(inEpochOf known: LogPosition) -> UInt64? {
    let position = atomic(Offset.position).pointee.load(ordering: .sequentiallyConsistent)
    let announced = atomic(Offset.announced).pointee.load(ordering: .sequentiallyConsistent)
    guard Self.epochNumber(ofTag: position) == known.epochNumber else { return nil }
    let isOfEpoch = Self.epochNumber(ofTag: announced) == known.epochNumber
    return max(position & Self.cursorMask, isOfEpoch ? announced & Self.cursorMask : 0)
  }

  // MARK: The ring of purges

  /// The second word of a slot: the size of the removal, and a part of the number.
  ///
  /// It is written together with the purge, because two processes may write to one slot at once.
  private static func check(_ number: UInt64, _ epoch: UInt64, byteCount: UInt64) -> UInt64 {
    byteCount | (number & 0xFFFF_FFFF) << 16 | epoch << epochShift
  }

  /// Keeps a purge for ``removal(ofPurge:inEpoch:)``. Call this before ``announce(upTo:inEpoch:)``.
  func keep(_ purge: Purge, number: UInt64, inEpoch epoch: UInt64) throws(RedisTierError) {
    let removal = purge.removal.encoded
    var bytes = [UInt8](repeating: 0, count: Self.slotByteCount)
    bytes.replaceSubrange(16..<32, with: purge.id.bytes)
    bytes.replaceSubrange(32..<32 + removal.count, with: removal)
    let check = Self.check(number, epoch, byteCount: UInt64(removal.count))
    bytes.withUnsafeMutableBytes {
      $0.storeBytes(of: number | epoch << Self.epochShift, as: UInt64.self)
      $0.storeBytes(of: check, toByteOffset: 8, as: UInt64.self)
    }
    // The number last, so that a reader finds no number with another purge's bytes.
    let offset = off_t(Self.ringOffset) + off_t(number % Self.slotCount) * off_t(Self.slotByteCount)
    var none: UInt64 = 0
    // By `pwrite`, because storing to a hole of the mapping ends the process on a full disk.
    guard pwrite(file.number, &none, 8, offset) == 8,
      pwrite(file.number, Array(bytes[8...]), bytes.count - 8, offset + 8) == bytes.count - 8,
      pwrite(file.number, bytes, 8, offset) == 8
    else { throw Self.failed("pwrite") }
  }

  /// The ID of a purge of an epoch; nil if the ring does not have it.
  func purgeID(_ number: UInt64, inEpoch epoch: UInt64) -> RandomID? {
    withSlot(of: number, inEpoch: epoch) { RandomID(bytes: $0[16..<32]) }
  }

  /// The removal of a purge of an epoch; nil if the ring no longer has it.
  func removal(ofPurge number: UInt64, inEpoch epoch: UInt64) -> Removal? {
    guard number > atomic(Offset.ringFloor).pointee.load(ordering: .sequentiallyConsistent) else { return nil }
    return withSlot(of: number, inEpoch: epoch) { slot in
      let length = Int(slot.loadUnaligned(fromByteOffset: 8, as: UInt16.self))
      return Removal(encoded: UnsafeRawBufferPointer(rebasing: slot[32..<32 + length]))
    }
  }

  /// Calls `body` with the bytes of a purge's slot; nil if it has another purge, before or after the call.
  private func withSlot<Result>(
    of number: UInt64, inEpoch epoch: UInt64, _ body: (UnsafeRawBufferPointer) -> Result?
  ) -> Result? {
    let offset = Self.ringOffset + Int(number % Self.slotCount) * Self.slotByteCount
    let expected = number | epoch << Self.epochShift
    guard atomic(offset).pointee.load(ordering: .acquiring) == expected else { return nil }
    let slot = UnsafeRawBufferPointer(start: memory + offset, count: Self.slotByteCount)
    let check = slot.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
    let length = check & 0xFFFF
    guard length <= Removal.maximumByteCount, check == Self.check(number, epoch, byteCount: length) else {
      return nil
    }
    let result = body(slot)
    atomicMemoryFence(ordering: .sequentiallyConsistent)
    return atomic(offset).pointee.load(ordering: .acquiring) == expected ? result : nil
  }
}
