import Glibc
import Synchronization
import SystemFiles

/// The mapped file of the last requests of all processes, which a watching process creates.
///
/// | Byte | Contents |
/// |---|---|
/// | 0 | magic number: the bytes `LMBCEVT3` on a little-endian machine |
/// | 8 | the number of slots, a power of two |
/// | 16 | the number of this file, a random one |
/// | 128 | the number of events that were written |
/// | 4,096 | slots of 512 bytes: twice the number of the event plus 2 (plus 1 while it is written), a checksum, and the words of ``EventWords`` that it uses |
///
/// A writer takes the next number and overwrites the slot of an older event. It waits for no other process. A slot that
/// a killed process left unfinished is skipped.
///
/// `@unchecked Sendable`: the pointer is constant, and every access to its memory is atomic.
final class EventRing: @unchecked Sendable {
  private static let magic: UInt64 = 0x3354_5645_4342_4d4c
  private static let slotByteCount = 512
  private static let slotsOffset = 4096
  private static let headOffset = 128
  private static let slotCounts = 64...4096

  private let base: UnsafeMutableRawPointer
  let slotCount: Int
  /// The number of the file.
  let id: UInt64

  private init(mapped base: UnsafeMutableRawPointer, slotCount: Int, id: UInt64) {
    self.base = base
    self.slotCount = slotCount
    self.id = id
  }

  deinit {
    munmap(base, Self.byteCount(slotCount: slotCount))
  }

  private static func byteCount(slotCount: Int) -> Int { slotsOffset + slotCount * slotByteCount }

  // MARK: Opening

  /// Maps the file at a path; nil if there is none or it is corrupt.
  static func open(path: String) -> EventRing? {
    MappedFile.open(path: path) { (descriptor, byteCount) in
      var header = [UInt64](repeating: 0, count: 3)
      guard pread(descriptor, &header, 24, 0) == 24, header[0] == magic, let slotCount = Int(exactly: header[1]),
        slotCounts.contains(slotCount), slotCount.nonzeroBitCount == 1, header[2] != 0,
        byteCount == self.byteCount(slotCount: slotCount)
      else { return nil }
      return map(descriptor, slotCount: slotCount, id: header[2])
    }
  }

  /// Creates a file of at most 1/64 of the capacity, and at least 36 KiB; nil if there is no space.
  static func create(path: String, capacityByteCount: Int) -> EventRing? {
    var slotCount = slotCounts.upperBound
    while slotCount > slotCounts.lowerBound, byteCount(slotCount: slotCount) > capacityByteCount / 64 { slotCount /= 2 }
    let header = [magic, UInt64(slotCount), UInt64.random(in: 1 ... .max)]
    return WriteSignals.suppressing {
      MappedFile.create(path: path, byteCount: byteCount(slotCount: slotCount)) { descriptor in
        pwrite(descriptor, header, 24, 0) == 24 ? map(descriptor, slotCount: slotCount, id: header[2]) : nil
      }
    }
  }

  private static func map(_ descriptor: CInt, slotCount: Int, id: UInt64) -> EventRing? {
    MappedFile.map(descriptor, byteCount: byteCount(slotCount: slotCount))
      .map { EventRing(mapped: $0, slotCount: slotCount, id: id) }
  }

  // MARK: Events

  /// The number of events that were written, or are being written.
  var head: UInt64 { ActivityLayout.word(base, Self.headOffset).pointee.load(ordering: .acquiring) }

  private func slot(_ number: UInt64) -> UnsafeMutableRawPointer {
    base + Self.slotsOffset + Int(number & UInt64(slotCount - 1)) * Self.slotByteCount
  }

  func append(_ event: RequestEvent) {
    let content = EventWords(event)
    let number = ActivityLayout.word(base, Self.headOffset).pointee.wrappingAdd(1, ordering: .relaxed).oldValue
    let slot = slot(number)
    let sequence = ActivityLayout.word(slot, 0)
    sequence.pointee.store(number &* 2 &+ 1, ordering: .sequentiallyConsistent)
    ActivityLayout.word(slot, 8).pointee.store(content.checksum(sequence: number), ordering: .relaxed)
    for index in 0..<content.usedWordCount {
      ActivityLayout.word(slot, 16 + index * 8).pointee.store(content.words[index], ordering: .relaxed)
    }
    sequence.pointee.store(number &* 2 &+ 2, ordering: .releasing)
  }

  enum Slot {
    case event(RequestEvent)
    /// A process is writing it, or died while it did.
    case unfinished
    /// A later event overwrote it, or it is corrupt.
    case lost
  }

  func read(_ number: UInt64) -> Slot {
    let slot = slot(number)
    let sequence = ActivityLayout.word(slot, 0)
    let before = sequence.pointee.load(ordering: .acquiring)
    guard before == number &* 2 &+ 2 else { return before < number &* 2 &+ 2 ? .unfinished : .lost }
    let checksum = ActivityLayout.word(slot, 8).pointee.load(ordering: .relaxed)
    var words = InlineArray<62, UInt64>(repeating: 0)
    for index in 0..<EventWords.wordCount {
      words[index] = ActivityLayout.word(slot, 16 + index * 8).pointee.load(ordering: .relaxed)
    }
    // The checksum detects a writer that has begun in the meantime.
    let content = EventWords(words: words)
    guard content.checksum(sequence: number) == checksum, let event = content.event else { return .lost }
    return .event(event)
  }
}
