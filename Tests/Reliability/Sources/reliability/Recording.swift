import FoundationEssentials
import Glibc

/// What the recorder wrote: each write to the data file, when it was synced, and what was promised in between.
struct Recording {
  enum Event {
    /// `isSynced`: by a descriptor that writes through, so safe once it returned.
    case write(offset: Int, bytes: Range<Int>, isSynced: Bool)
    case syncBegan(Int)
    case syncEnded(Int)
    case truncate(Int)
    case punch(offset: Int, length: Int)
    case note(word: Int, value: UInt64)
  }

  let bytes: Data
  private(set) var events: [Event] = []

  init(path: String) {
    guard let bytes = FileManager.default.contents(atPath: path) else { fail("there is no recording at \(path)") }
    self.bytes = bytes
    var events: [Event] = []
    bytes.withUnsafeBytes { raw in
      var place = 0
      func number(_ index: Int) -> Int { raw.loadUnaligned(fromByteOffset: place + index * 8, as: Int.self) }
      while place + 24 <= raw.count {
        let (kind, first, second) = (number(0), number(1), number(2))
        place += 24
        switch kind {
        case 1, 2:
          // The last one may have been cut off by the end of the process.
          guard place + second <= raw.count else { return }
          events.append(.write(offset: first, bytes: place..<(place + second), isSynced: kind == 2))
          place += second
        case 3: events.append(.syncBegan(first))
        case 4: events.append(.syncEnded(first))
        case 5: events.append(.truncate(first))
        case 6: events.append(.punch(offset: first, length: second))
        case 7: events.append(.note(word: first, value: UInt64(bitPattern: Int64(second))))
        default: fail("the recording has a record of kind \(kind)")
        }
      }
    }
    self.events = events
  }

  /// For each event how many before it are safe on the disk: those before the beginning of the last sync that has ended.
  func safeCounts() -> [Int] {
    var began: [Int: Int] = [:]
    var safe = 0
    var counts: [Int] = []
    counts.reserveCapacity(events.count + 1)
    for (index, event) in events.enumerated() {
      counts.append(safe)
      switch event {
      case .syncBegan(let number): began[number] = index
      case .syncEnded(let number): safe = max(safe, began[number] ?? 0)
      default: break
      }
    }
    counts.append(safe)
    return counts
  }
}

/// The bytes of a file as a disk has them.
struct DiskImage {
  var bytes: [UInt8] = []
  static let blockByteCount = 4096

  /// Applies an event; of one that is not safe, each block only if `keeps` says so.
  mutating func apply(_ event: Recording.Event, of recording: Recording, keeps: () -> Bool) {
    switch event {
    case .write(let offset, let range, let isSynced):
      blocks(offset, range.count) { start, count in
        guard isSynced || keeps() else { return }
        grow(to: start + count)
        let from = range.lowerBound + start - offset
        recording.bytes.withUnsafeBytes { source in
          bytes.withUnsafeMutableBytes { target in
            target[start..<(start + count)].copyBytes(from: source[from..<(from + count)])
          }
        }
      }
    case .truncate(let length):
      if keeps() { grow(to: length) }
    case .punch(let offset, let length):
      blocks(offset, length) { start, count in
        guard keeps(), start < bytes.count else { return }
        for index in start..<min(start + count, bytes.count) { bytes[index] = 0 }
      }
    case .syncBegan, .syncEnded, .note:
      break
    }
  }

  /// The store only ever makes its file longer.
  private mutating func grow(to length: Int) {
    if length > bytes.count { bytes += [UInt8](repeating: 0, count: length - bytes.count) }
  }

  private func blocks(_ offset: Int, _ count: Int, _ body: (Int, Int) -> Void) {
    var start = offset
    let end = offset + count
    while start < end {
      let next = min(end, (start / Self.blockByteCount + 1) * Self.blockByteCount)
      body(start, next - start)
      start = next
    }
  }

  func write(to path: String) {
    let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
    guard descriptor >= 0 else { fail("cannot write \(path)") }
    var done = 0
    bytes.withUnsafeBytes { raw in
      while done < raw.count {
        let count = Glibc.write(descriptor, raw.baseAddress! + done, raw.count - done)
        guard count > 0 else { fail("cannot write \(path)") }
        done += count
      }
    }
    close(descriptor)
  }
}
