import FoundationEssentials
import Glibc

/// The events that the recorder wrote: writes and syncs of the data file and the removal log, and changes of the
/// ledger.
struct Recording {
  enum File: Int, CaseIterable {
    case data, removals
    var name: String { self == .data ? "data.mdb" : "LMDBURLCache.removals" }
  }

  struct Event {
    var file: File
    var kind: Kind
  }

  enum Kind {
    /// A write; `isSynced` if its descriptor syncs each write, so that the write is durable when it returns.
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
      var position = 0
      func number(_ index: Int) -> Int { raw.loadUnaligned(fromByteOffset: position + index * 8, as: Int.self) }
      while position + 24 <= raw.count {
        let (kind, first, second) = (number(0), number(1), number(2))
        position += 24
        let file = kind >= 256 ? File.removals : .data
        func append(_ kind: Kind) { events.append(Event(file: file, kind: kind)) }
        switch kind % 256 {
        case 1, 2:
          // The last record may be truncated, because the process ended.
          guard position + second <= raw.count else { return }
          append(.write(offset: first, bytes: position..<(position + second), isSynced: kind % 256 == 2))
          position += second
        case 3: append(.syncBegan(first))
        case 4: append(.syncEnded(first))
        case 5: append(.truncate(first))
        case 6: append(.punch(offset: first, length: second))
        case 7: append(.note(word: first, value: UInt64(bitPattern: Int64(second))))
        default: fail("the recording has a record of kind \(kind)")
        }
      }
    }
    self.events = events
  }

  /// Returns for each event the number of events after which it is durable.
  ///
  /// An event is durable when the first sync of its file that began after the event has ended.
  func safeAfter() -> [Int] {
    var safe = [Int](repeating: .max, count: events.count)
    for file in File.allCases {
      var began: [Int: Int] = [:]
      var settled = 0
      for (index, event) in events.enumerated() where event.file == file {
        switch event.kind {
        case .syncBegan(let number): began[number] = index
        case .syncEnded(let number):
          guard let start = began[number], start > settled else { continue }
          for earlier in settled..<start where events[earlier].file == file { safe[earlier] = index + 1 }
          settled = start
        default: break
        }
      }
    }
    return safe
  }
}

/// The contents of a file on a simulated disk.
struct DiskImage {
  var bytes: [UInt8] = []
  static let blockByteCount = 4096

  /// Applies an event; `keeps` decides for each block whether a write that was not synced is on the disk.
  mutating func apply(_ event: Recording.Event, of recording: Recording, keeps: () -> Bool) {
    switch event.kind {
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

  /// Extends the file; the store never shortens its files.
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

/// The contents of the files of a directory on a simulated disk.
struct DiskImages {
  private var images: [Recording.File: DiskImage] = [:]

  mutating func apply(_ event: Recording.Event, of recording: Recording, keeps: () -> Bool) {
    guard !event.kind.changesNothing else { return }
    images[event.file, default: DiskImage()].apply(event, of: recording, keeps: keeps)
  }

  /// Writes the files for which there are events.
  func write(to directory: String) {
    for (file, image) in images { image.write(to: directory + "/" + file.name) }
  }
}

extension Recording.Kind {
  var changesNothing: Bool {
    switch self {
    case .syncBegan, .syncEnded, .note: true
    case .write, .truncate, .punch: false
    }
  }
}
