import CacheModel
import FoundationEssentials
import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The removal log: a file in which each removal is durable, and from then on in force.
///
/// A removal must take effect at once in all processes, even while LMDB's write transaction waits for the disk. It
/// therefore does not use LMDB. It takes the next sequence number, is written to a frame of this file and synced, and
/// is then published by raising ``sequence``. Every process has that word mapped, and every lookup compares it. From
/// then on, covered responses with a lower number are hidden. The writer later applies the removal to the database, and
/// the frame becomes free.
///
/// A process can end between the two. Its removal must then never come into force, because other processes have served
/// responses since. ``RemovalClaims`` tells such an abandoned removal. Before a higher number is published, the frame
/// is overwritten with a removal of nothing.
///
/// `@unchecked Sendable`: the mapping and the descriptor are constant. Shared words are accessed atomically, and a
/// frame is valid only if its checksum matches.
final class RemovalLog: @unchecked Sendable {
  static let name = "LMDBURLCache.removals"
  static let magic = UInt64(littleEndian: 0x314C_4D52_4543_4D4C)
  static let headerByteCount = 4096

  /// The offsets of the header's words. Words that change are in separate cache lines.
  private enum Offset {
    static let magic = 0
    static let owner = 8
    static let frameCount = 16
    static let sequence = 64
    static let lastApplied = 128
    static let written = 192
  }

  enum Failure: Error {
    /// Another process held the lock, or the log was full, for too long.
    case busy
    case system(CInt)
  }

  let frameCount: Int
  private let file: LockDescriptor
  private let memory: UnsafeMutableRawPointer
  private let claims: RemovalClaims
  let byteCount: Int

  /// Whether a thread of this process is writing a removal. Processes take turns with `flock`.
  private let turn = Monitor(false)

  private init(file: LockDescriptor, memory: UnsafeMutableRawPointer, frameCount: Int) {
    self.file = file
    self.memory = memory
    self.frameCount = frameCount
    claims = RemovalClaims(file)
    byteCount = Self.byteCount(frameCount: frameCount)
  }

  deinit {
    munmap(memory, byteCount)
  }

  static func byteCount(frameCount: Int) -> Int { headerByteCount + frameCount * RemovalFrame.byteCount }

  /// Returns the number of frames, which must suffice for the removals between two commits and between two lookups in a
  /// memory tier.
  static func frameCount(capacityByteCount: Int) -> Int {
    min(max(capacityByteCount >> 16, 64), 1024)
  }

  // MARK: Opening

  /// Maps the log of a directory; nil if it is missing, corrupt, or not of the database of `owner`, if one is given.
  static func open(path: String, owner: UInt64? = nil) -> RemovalLog? {
    guard let file = LockDescriptor(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) else { return nil }
    var header = [UInt64](repeating: 0, count: 3)
    var status = stat()
    guard pread(file.number, &header, 24, 0) == 24, header[0] == magic, owner == nil || header[1] == owner,
      header[2] >= 1, header[2] <= 1 << 20, fstat(file.number, &status) == 0,
      status.st_size == byteCount(frameCount: Int(header[2]))
    else { return nil }
    return mapped(file, frameCount: Int(header[2]))
  }

  /// Creates an empty log, under another name first so that no process sees an incomplete one.
  static func create(path: String, owner: UInt64, frameCount: Int) throws(Failure) -> RemovalLog {
    let temporary = path + ".new"
    unlink(temporary)
    let file = LockDescriptor(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard let file else { throw .system(errno) }
    // Written now, so that a removal needs no space on a full disk. Writing the zeros also keeps its sync from waiting
    // for the file system's journal, as a first write to allocated blocks does.
    var content = [UInt64](repeating: 0, count: byteCount(frameCount: frameCount) / 8)
    content[..<3] = [magic, owner, UInt64(frameCount)]
    MappedFileBlocks.prepareEmptyFile(file.number)
    let count = content.withUnsafeBytes { pwrite(file.number, $0.baseAddress, $0.count, 0) }
    var failure = count < 0 ? errno : count < byteCount(frameCount: frameCount) ? ENOSPC : 0
    if failure == 0, fsync(file.number) != 0 { failure = errno }
    if failure == 0, rename(temporary, path) != 0 { failure = errno }
    guard failure == 0, let log = mapped(file, frameCount: frameCount) else {
      let cause = failure == 0 ? errno : failure
      unlink(temporary)
      throw .system(cause)
    }
    return log
  }

  private static func mapped(_ file: LockDescriptor, frameCount: Int) -> RemovalLog? {
    MappedFile.map(file.number, byteCount: byteCount(frameCount: frameCount))
      .map { RemovalLog(file: file, memory: $0, frameCount: frameCount) }
  }

  /// Restores the shared words, which may be older than the frames and the database after a power failure.
  ///
  /// Call this while no other process uses the directory.
  ///
  /// - Parameters:
  ///   - lastApplied: The last removal that was applied to the database.
  ///   - known: The last removal that a writer of the database knew.
  ///   - isSameBoot: Whether the page cache has kept the words since a process last used them.
  /// - Returns: False if a frame is unreadable, which may have contained any removal. Then nothing is changed.
  func recover(lastApplied: UInt64, known: UInt64, isSameBoot: Bool) throws(Failure) -> Bool {
    let numbers = (0..<frameCount).map { RemovalFrame.number(in: frame($0)) }
    for (index, number) in numbers.enumerated() where number == nil {
      if frame(index).contains(where: { $0 != 0 }) { return false }
    }
    // A frame is used again when the database has its removal durably. Older data would bring removed records back.
    for number in numbers.compactMap(\.self) where number > lastApplied {
      if number - lastApplied > UInt64(frameCount) { return false }
    }
    // When a removal is published, it and all earlier ones are durable. A removal after a gap was not published.
    let first = max(lastApplied, known)
    var last = first
    while RemovalFrame.number(in: frame(of: last + 1)) == last + 1 { last += 1 }
    // A higher number is that of a process that ended before its removal was in force. The words fit the frames, unless
    // they are older: then any of the removals may have been in force.
    if isSameBoot, (first...last).contains(sequence), (last...last + 1).contains(written) { last = sequence }
    for (index, number) in numbers.enumerated() where number ?? 0 > last {
      try write(RemovalFrame.empty, toFrame: index)
    }
    guard fdatasync(file.number) == 0 else { throw .system(errno) }
    word(Offset.lastApplied).pointee.store(lastApplied, ordering: .relaxed)
    word(Offset.written).pointee.store(last, ordering: .relaxed)
    word(Offset.sequence).pointee.store(last, ordering: .releasing)
    return true
  }

  // MARK: Reading

  private func word(_ offset: Int) -> UnsafeMutablePointer<Atomic<UInt64>> {
    (memory + offset).assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  /// The number that the log has in common with its database.
  var owner: UInt64 { UInt64(littleEndian: memory.load(fromByteOffset: Offset.owner, as: UInt64.self)) }

  /// The number of the last removal that is in force.
  var sequence: UInt64 { word(Offset.sequence).pointee.load(ordering: .acquiring) }

  /// Removals up to this number are applied to the database durably; their frames are free.
  var lastApplied: UInt64 { word(Offset.lastApplied).pointee.load(ordering: .acquiring) }

  var hasRemovalsToApply: Bool { sequence > lastApplied }

  /// The number of the last removal that was, or is being, written to its frame.
  private var written: UInt64 { word(Offset.written).pointee.load(ordering: .acquiring) }

  func markApplied(_ number: UInt64) {
    word(Offset.lastApplied).pointee.max(number, ordering: .acquiringAndReleasing)
  }

  /// Returns a removal in force; nil if a later one uses its frame, so that this one was applied to the database. An
  /// unreadable one counts as a removal of everything.
  func removal(_ number: UInt64) -> Removal? {
    // Copy the frame, because another process may be writing it. The checksum shows an incomplete copy.
    let copy = [UInt8](frame(of: number))
    let found = copy.withUnsafeBytes { RemovalFrame.number(in: $0) }
    if let found, found > number { return nil }
    if found == number, let removal = copy.withUnsafeBytes({ RemovalFrame.removal(in: $0) }) { return removal }
    return number <= lastApplied ? nil : Removal(.everything)
  }

  private func frame(of number: UInt64) -> UnsafeRawBufferPointer {
    frame(Int(number % UInt64(frameCount)))
  }

  private func frame(_ index: Int) -> UnsafeRawBufferPointer {
    UnsafeRawBufferPointer(
      start: memory + Self.headerByteCount + index * RemovalFrame.byteCount, count: RemovalFrame.byteCount)
  }

  // MARK: Appending

  /// Logs removals with one sync for all that fit, and returns the sequence number of the last one. They are then
  /// durable and in force for all processes.
  ///
  /// - Parameters:
  ///   - timeout: How long to wait for the lock of another process, and for a free frame.
  ///   - applyRemovals: Called repeatedly while the log is full, to apply removals to the database.
  @discardableResult
  func append(
    _ removals: [Removal], timeout: Duration, applyRemovals: () -> Void
  ) throws(Failure) -> UInt64 {
    var rest = removals[...]
    let deadline = MonotonicTime.now + timeout
    while true {
      var numbers: ClosedRange<UInt64>?
      defer { if let numbers { claims.release(numbers) } }
      // The lock is held only for copies: a process suspended meanwhile blocks all others.
      try withLock(until: deadline) { () throws(Failure) in
        _ = try overwriteAbandoned(before: .max)
        while let removal = rest.first, let number = try write(removal) {
          numbers = (numbers?.lowerBound ?? number)...number
          rest.removeFirst()
        }
      }
      if let numbers { try publish(numbers, until: deadline) }
      if rest.isEmpty { return numbers?.upperBound ?? sequence }
      guard MonotonicTime.now < deadline else { throw .busy }
      applyRemovals()
      usleep(500)
    }
  }

  /// Assigns a number to a removal and writes it to its frame. Returns nil if the frame is not free yet.
  private func write(_ removal: Removal) throws(Failure) -> UInt64? {
    let number = written + 1
    guard number <= lastApplied + UInt64(frameCount) else { return nil }
    try claims.claim(number)
    // First the number, so that no frame is overlooked after the end of this process.
    word(Offset.written).pointee.store(number, ordering: .releasing)
    do throws(Failure) {
      try write(RemovalFrame.encode(number, removal), toFrame: Int(number % UInt64(frameCount)))
    } catch {
      claims.release(number...number)
      throw error
    }
    return number
  }

  /// Puts removals and all earlier ones in force, after making them durable.
  ///
  /// No record on disk may have a removal number that a power failure undoes.
  private func publish(_ numbers: ClosedRange<UInt64>, until deadline: MonotonicTime) throws(Failure) {
    var isSynced = false
    while !isSynced {
      try synchronize(numbers)
      isSynced = true
      // Another process has begun earlier and is not done. If it is dead, its removal must not come into force.
      guard sequence + 1 < numbers.lowerBound else { continue }
      do throws(Failure) {
        try withLock(until: deadline) { () throws(Failure) in
          isSynced = try !overwriteAbandoned(before: numbers.lowerBound)
        }
      } catch .busy {
        // A suspended process holds the lock. This removal must come into force without it.
      }
    }
    word(Offset.sequence).pointee.max(numbers.upperBound, ordering: .acquiringAndReleasing)
  }

  /// Makes the frames of removals durable.
  ///
  /// After an error, the kernel no longer writes what it could not write, so the frames are written again.
  private func synchronize(_ numbers: ClosedRange<UInt64>) throws(Failure) {
    let frames = numbers.map { [UInt8](frame(of: $0)) }
    var attempt = 1
    while fdatasync(file.number) != 0 {
      guard attempt < Self.attemptCount else { throw .system(errno) }
      attempt += 1
      for (number, bytes) in zip(numbers, frames) { try write(bytes, toFrame: Int(number % UInt64(frameCount))) }
    }
  }

  /// How often a frame is written and synced before the store fails.
  private static let attemptCount = 3

  // MARK: Abandoned removals

  /// Discards the removals of processes that ended before these were in force.
  ///
  /// The next removal does that, too. If there is none, a power failure would put them in force; see
  /// ``recover(lastApplied:known:isSameBoot:)``.
  func discardAbandoned() {
    guard written > sequence else { return }
    do throws(Failure) {
      var last: UInt64?
      try withLock(until: .now + .milliseconds(100)) { () throws(Failure) in
        _ = try overwriteAbandoned(before: .max)
        if !(sequence + 1..<written + 1).contains(where: { claims.isClaimed($0) }) { last = written }
      }
      guard let last, fdatasync(file.number) == 0 else { return }
      word(Offset.sequence).pointee.max(last, ordering: .acquiringAndReleasing)
    } catch {
      // The next call tries again.
    }
  }

  /// Overwrites the frames of abandoned removals below a number, with the lock. Returns whether there were any.
  private func overwriteAbandoned(before end: UInt64) throws(Failure) -> Bool {
    var isChanged = false
    for number in sequence + 1..<max(sequence + 1, min(end, written + 1)) where !claims.isClaimed(number) {
      let bytes = RemovalFrame.encode(number, Removal(.nothing))
      // Its process may have put it in force meanwhile.
      guard number > sequence, !frame(of: number).elementsEqual(bytes) else { continue }
      try write(bytes, toFrame: Int(number % UInt64(frameCount)))
      isChanged = true
    }
    return isChanged
  }

  private func write(_ bytes: [UInt8], toFrame index: Int) throws(Failure) {
    let offset = off_t(Self.headerByteCount + index * RemovalFrame.byteCount)
    var written = 0
    var attempt = 1
    while written < bytes.count {
      let count = bytes.withUnsafeBytes { bytes in
        WriteSignals.suppressing {
          pwrite(file.number, bytes.baseAddress! + written, bytes.count - written, offset + off_t(written))
        }
      }
      if count > 0 {
        written += count
      } else if count < 0, errno == EFBIG {
        // The limit on file sizes holds within a file, too, but not for its mapping. The file has blocks of its own.
        return bytes.withUnsafeBytes { (memory + Int(offset)).copyMemory(from: $0.baseAddress!, byteCount: $0.count) }
      } else {
        guard attempt < Self.attemptCount else { throw .system(count < 0 ? errno : ENOSPC) }
        attempt += 1
      }
    }
  }

  private func withLock(
    until deadline: MonotonicTime, _ body: () throws(Failure) -> Void
  ) throws(Failure) {
    try lock(until: deadline)
    defer { unlock() }
    try body()
  }

  /// Takes the lock between threads and processes. The lock of a process that dies is released.
  private func lock(until deadline: MonotonicTime) throws(Failure) {
    let hasTurn = turn.wait(timeout: MonotonicTime.now.duration(to: deadline)) { isTaken -> Bool? in
      if isTaken { return nil }
      isTaken = true
      return true
    }
    guard hasTurn != nil else { throw .busy }
    var pause: UInt32 = 20
    while flock(file.number, LOCK_EX | LOCK_NB) != 0 {
      let number = errno
      guard number == EWOULDBLOCK || number == EINTR, MonotonicTime.now < deadline else {
        turn.update { $0 = false }
        throw number == EWOULDBLOCK || number == EINTR ? .busy : .system(number)
      }
      usleep(pause)
      pause = min(pause * 2, 1000)
    }
  }

  private func unlock() {
    flock(file.number, LOCK_UN)
    turn.update { $0 = false }
  }
}
