import CacheModel
import Glibc
import Synchronization

/// The shared counters that a store or a caching client uses now.
///
/// A hit costs one load while there is no file, and a few additions otherwise. All members can be called from any
/// thread.
///
/// `@unchecked Sendable`: `pointer` is atomic, and points to memory that `files` keeps mapped. A thread may still count
/// in an earlier file. Such a file is unmapped after eight more stores were opened, which takes minutes.
@usableFromInline
package final class ActivityReference: @unchecked Sendable {
  private let pointer = Atomic<UnsafeMutableRawPointer?>(nil)
  /// The row of this process in that memory.
  private let row = Atomic<UnsafeMutableRawPointer?>(nil)
  private let files = Mutex<[ActivityFile]>([])
  /// The last value of ``record(isOfSharedCache:)``; changes only within `files`.
  private let isOfSharedCache = Mutex<Bool?>(nil)
  /// The files of events that were used, and the last one.
  private let rings = Mutex<[EventRing]>([])

  /// The observers of events in this process.
  package let observers = EventObservers()

  /// How many files stay mapped: the present one and the earlier ones.
  private static let mappedFileCount = 9

  /// Creates a reference without a file.
  package init() {}

  /// Counts in another file from now on; nil keeps the present one.
  package func use(_ file: ActivityFile?) {
    guard let file else { return }
    files.withLock { files in
      // An earlier file stays mapped for a while, because another thread may be counting in it.
      if !files.contains(where: { $0 === file }) { files.append(file) }
      row.store(file.row, ordering: .relaxed)
      pointer.store(file.base, ordering: .releasing)
      if let isOfSharedCache = isOfSharedCache.withLock(\.self) { file.record(isOfSharedCache: isOfSharedCache) }
      if files.count > Self.mappedFileCount { files.removeFirst() }
    }
  }

  /// Records in the present file, and in each later one, by which rules this program caches.
  ///
  /// Tools read it, so that what they store has the mode that the program expects. If the programs of a directory
  /// differ, the last one to open it counts.
  package func record(isOfSharedCache isShared: Bool) {
    files.withLock { files in
      isOfSharedCache.withLock { $0 = isShared }
      files.last { $0.base == pointer.load(ordering: .relaxed) }?.record(isOfSharedCache: isShared)
    }
  }

  /// The monotonic time in nanoseconds, which all processes of the machine share.
  package static var nanoseconds: UInt64 { UInt64(MonotonicTime.now.nanoseconds) }

  /// The present file.
  package var file: ActivityFile? {
    files.withLock { files in files.last { $0.base == pointer.load(ordering: .relaxed) } }
  }

  @inline(__always)
  var base: UnsafeMutableRawPointer? { pointer.load(ordering: .acquiring) }

  /// The stripe of the calling thread in the row of this process.
  @inline(__always)
  private var stripe: UnsafeMutableRawPointer? { row.load(ordering: .acquiring).map { ProcessTable.stripe($0) } }

  @inline(__always)
  private static func isWatched(_ base: UnsafeMutableRawPointer) -> Bool {
    let granted = ActivityLayout.word(base, ActivityLayout.HeaderWord.grantedEvents * 8)
    return granted.pointee.load(ordering: .relaxed) &- 1 < ActivityLayout.maximumGrantedEvents
  }

  // MARK: Hits

  /// A hit in progress: where it is counted, and when it began if it is timed.
  @usableFromInline
  package struct Timer: Sendable {
    fileprivate let stripe: UInt
    /// The time at which the lookup began; 0 if it is neither timed nor watched.
    @usableFromInline package let start: UInt64
    fileprivate let isSampled: Bool
    /// Whether to record the request, if ``ActivityReference/takeGrantedEvent()`` permits it.
    @usableFromInline package let isWatched: Bool
  }

  /// Begins a lookup that may become a hit. Pass the timer to ``countHit(_:isStale:byteCount:)``.
  ///
  /// - Parameter isTimed: Whether one in 64 of a thread's lookups is timed.
  package func begin(isTimed: Bool) -> Timer {
    let isObserved = observers.isObserved
    guard let base, let stripe else {
      return Timer(stripe: 0, start: isObserved ? Self.nanoseconds : 0, isSampled: false, isWatched: isObserved)
    }
    let hits = ActivityLayout.word(stripe, 0).pointee.load(ordering: .relaxed)
    let isSampled = isTimed && hits & (ActivityLayout.hitSampleInterval - 1) == 0
    let isWatched = isObserved || Self.isWatched(base)
    return Timer(
      stripe: UInt(bitPattern: stripe), start: isSampled || isWatched ? Self.nanoseconds : 0, isSampled: isSampled,
      isWatched: isWatched)
  }

  /// Counts a response from the store that needed no origin.
  package func countHit(_ timer: Timer, isStale: Bool, byteCount: Int) {
    guard let stripe = UnsafeMutableRawPointer(bitPattern: timer.stripe) else { return }
    ProcessTable.add(1, isStale ? .staleHits : .freshHits, stripe)
    ProcessTable.add(UInt64(truncatingIfNeeded: byteCount), .hitBytes, stripe)
    if timer.isSampled { recordHitLatency(since: timer.start) }
  }

  /// Counts a request that was not a hit.
  package func countRequest(_ counter: CounterWord) {
    add(1, counter)
    if let stripe { ProcessTable.add(1, .otherRequests, stripe) }
  }

  /// Counts a lookup in the memory tier that found a response.
  package func countMemoryLookup() {
    if let stripe { ProcessTable.add(1, .memoryLookups, stripe) }
  }

  @inline(__always)
  package func countLookup(isHit: Bool) {
    if let stripe { ProcessTable.add(1, isHit ? .diskLookups : .missedLookups, stripe) }
  }

  @inline(never)
  private func recordHitLatency(since start: UInt64) {
    record(Self.nanoseconds &- start, at: ActivityLayout.hitLatencyOffset)
  }

  // MARK: Events

  /// Whether to record requests, because a process watches or this process observes events; two loads.
  package var isWatched: Bool { observers.isObserved || base.map { Self.isWatched($0) } ?? false }

  /// Returns whether to record a request now, and counts it as recorded.
  ///
  /// A process that watches grants some events at a time. So recording costs a bounded part of a thread's time, it ends
  /// by itself after the watching process has died, and requests beyond it cost one load.
  package func takeGrantedEvent() -> Bool {
    guard let base, Self.isWatched(base) else { return false }
    let granted = ActivityLayout.word(base, ActivityLayout.HeaderWord.grantedEvents * 8)
    return granted.pointee.wrappingSubtract(1, ordering: .relaxed).oldValue &- 1 < ActivityLayout.maximumGrantedEvents
  }

  /// Records a request for the processes that watch.
  package func record(_ event: RequestEvent) {
    guard let base, let ring = ring(base) else { return }
    ring.append(event)
  }

  /// The file of events to which the header points; nil if it is gone.
  private func ring(_ base: UnsafeMutableRawPointer) -> EventRing? {
    let id = ActivityLayout.word(base, ActivityLayout.HeaderWord.eventFile * 8).pointee.load(ordering: .acquiring)
    return rings.withLock { rings in
      if let last = rings.last, last.id == id { return last }
      guard let path = files.withLock({ $0.last { $0.base == base }?.path }),
        let ring = EventRing.open(path: path.dropLast(ActivityFile.name.count) + EventWatch.fileName),
        ring.id == id
      else { return nil }
      // Another thread that writes into an earlier ring holds a reference to it.
      rings = [ring]
      return ring
    }
  }

  // MARK: Everything else

  package func add(_ count: Int, _ counter: CounterWord) {
    guard let base, count > 0 else { return }
    ActivityLayout.word(base, ActivityLayout.countersOffset + counter.rawValue * 8).pointee
      .wrappingAdd(UInt64(count), ordering: .relaxed)
  }

  /// Records how long a fetch took until its head arrived.
  package func recordFetch(nanoseconds: UInt64) {
    record(nanoseconds, at: ActivityLayout.fetchLatencyOffset)
  }

  private func record(_ nanoseconds: UInt64, at offset: Int) {
    guard let base else { return }
    let bucket = LatencyHistogram.bucket(ofNanoseconds: nanoseconds)
    ActivityLayout.word(base, offset + bucket * 8).pointee.wrappingAdd(1, ordering: .relaxed)
    ActivityLayout.word(base, offset + LatencyHistogram.bucketCount * 8).pointee
      .wrappingAdd(min(nanoseconds, 1 << 40), ordering: .relaxed)
  }
}
