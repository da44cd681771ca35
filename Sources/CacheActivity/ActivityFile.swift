import Glibc
import Synchronization
import SystemFiles

/// The mapped file of the counters that all processes of a directory share, and that outlive them.
///
/// Counting changes words in memory. The page cache keeps them when a process dies, so a killed process loses at most
/// the event that it was counting. Nothing syncs the file. It is advisory: a file that is missing, too short, of
/// another version or implausible is replaced by one that begins at zero.
///
/// `@unchecked Sendable`: the pointer is constant, and every access to its memory is atomic.
package final class ActivityFile: @unchecked Sendable {
  /// The name of the file in the directory.
  package static let name = "LMDBURLCache.counters"

  let base: UnsafeMutableRawPointer
  /// The path from which the file was mapped.
  let path: String
  /// The row of this process in the ``ProcessTable``; nil before ``enter()`` and after ``leave()``, or if all are
  /// taken.
  private let place = Atomic<UnsafeMutableRawPointer?>(nil)

  private init(mapped base: UnsafeMutableRawPointer, path: String) {
    self.base = base
    self.path = path
  }

  deinit {
    munmap(base, ActivityLayout.byteCount)
  }

  /// Maps the file of a directory; nil if there is no usable file and none is created.
  ///
  /// - Parameter creates: Whether to create a file that is missing or unusable. Requires the directory's open lock.
  package static func open(path: String, creates: Bool) -> ActivityFile? {
    let present = MappedFile.open(path: path) { (descriptor, byteCount) -> ActivityFile? in
      if byteCount < ActivityLayout.byteCount {
        // Other processes may have mapped the file before it was truncated. Give them their pages back.
        if creates { _ = posix_fallocate(descriptor, 0, off_t(ActivityLayout.byteCount)) }
        return nil
      }
      guard let file = map(descriptor, path: path), file.isPlausible else { return nil }
      return file
    }
    if present != nil || !creates { return present }
    return MappedFile.create(path: path, byteCount: ActivityLayout.byteCount) { descriptor in
      let file = map(descriptor, path: path)
      file?.setHeader()
      return file
    }
  }

  private static func map(_ descriptor: CInt, path: String) -> ActivityFile? {
    MappedFile.map(descriptor, byteCount: ActivityLayout.byteCount).map { ActivityFile(mapped: $0, path: path) }
  }

  private func setHeader() {
    header(ActivityLayout.HeaderWord.byteCount).pointee.store(UInt64(ActivityLayout.byteCount), ordering: .relaxed)
    header(ActivityLayout.HeaderWord.start).pointee.store(ActivityLayout.now, ordering: .relaxed)
    header(ActivityLayout.HeaderWord.digestSeed).pointee.store(.random(in: 1...(.max)), ordering: .relaxed)
    header(ActivityLayout.HeaderWord.magic).pointee.store(ActivityLayout.magic, ordering: .releasing)
  }

  /// Adds this process to the table of processes. Call this with the directory's open lock.
  package func enter() {
    place.store(ProcessTable(base: base).enter(), ordering: .relaxed)
  }

  /// Removes this process from the table of processes, if it was added.
  package func leave() {
    guard let row = place.exchange(nil, ordering: .relaxed) else { return }
    ProcessTable.word(.openCount, row).pointee.wrappingSubtract(1, ordering: .releasing)
  }

  /// The row in which this process counts.
  var row: UnsafeMutableRawPointer { place.load(ordering: .relaxed) ?? ProcessTable(base: base).sharedRow }

  /// Whether the program that opened the directory last caches by the rules of a shared cache; nil if it is unknown.
  package var isOfSharedCache: Bool? {
    switch header(ActivityLayout.HeaderWord.cachingMode).pointee.load(ordering: .relaxed) {
    case 1: false
    case 2: true
    default: nil
    }
  }

  func record(isOfSharedCache: Bool) {
    header(ActivityLayout.HeaderWord.cachingMode).pointee.store(isOfSharedCache ? 2 : 1, ordering: .relaxed)
  }

  func header(_ word: Int) -> UnsafeMutablePointer<Atomic<UInt64>> { ActivityLayout.word(base, word * 8) }

  /// Whether the file is of this version, and no counter has a value that it cannot have reached.
  private var isPlausible: Bool {
    guard header(ActivityLayout.HeaderWord.magic).pointee.load(ordering: .acquiring) == ActivityLayout.magic,
      header(ActivityLayout.HeaderWord.byteCount).pointee.load(ordering: .relaxed) == UInt64(ActivityLayout.byteCount)
    else { return false }
    let offsets =
      ProcessTable.countOffsets
      + Array(stride(from: ActivityLayout.countersOffset, to: ActivityLayout.refusalsOffset, by: 8))
      + (0..<ActivityLayout.refusalCount).map {
        ActivityLayout.refusalsOffset + $0 * ActivityLayout.refusalByteCount + 8
      }
      + Array(stride(from: ActivityLayout.hitLatencyOffset, to: ActivityLayout.recentRefusalsOffset, by: 8))
    return offsets.allSatisfy {
      ActivityLayout.word(base, $0).pointee.load(ordering: .relaxed) < ActivityLayout.implausibleCount
    }
  }
}
