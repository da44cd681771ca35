import LMDB

/// Tombstones whose records one step deletes or marks together, and the position at which the step continues.
///
/// Tombstones by host, prefix or group share a pass over the index. Each other tombstone is worked on alone.
struct TombstoneWork: Sendable {
  var tombstones: [Tombstone]
  var position: ScanPosition
  /// The first tombstone. As long as its row exists, no other process has finished the work.
  var first: Tombstone { tombstones[0] }
}

/// How far the work of the hard tombstones, or of the soft ones, has come.
final class TombstoneProgress: Sendable {
  private let state = Monitor(State())

  /// Does a step of the work of tombstones. Returns false if there is nothing to do now.
  ///
  /// - Parameters:
  ///   - isPaced: Whether passes over the index must take at most a quarter of the time.
  ///   - step: Does some of the work and returns what is left; nil if nothing is left, or the work begins again. Called
  ///     again with `isCautious` after `MDB_MAP_FULL`; it must then need no contiguous pages.
  func step(
    among tombstones: [Tombstone], in database: RecordDatabase, isPaced: Bool,
    _ step: (TombstoneWork, _ isCautious: Bool) throws(LMDBError) -> TombstoneWork?
  ) throws(LMDBError) -> Bool {
    guard !tombstones.isEmpty,
      let work = state.withLock({ $0.next(among: tombstones, in: database, isPaced: isPaced) })
    else { return false }
    let rest: TombstoneWork?
    do throws(LMDBError) {
      rest = try step(work, false)
    } catch {
      guard error.code == .mapFull else { throw error }
      rest = try step(work, true)
    }
    state.withLock { $0.record(rest, of: work) }
    return true
  }

  private struct State {
    /// The maximum number of tombstones that share a pass.
    private static let maximumSharedCount = 1024

    /// The position for each tombstone that is worked on alone; the key is its row in `meta`.
    private var positions: [[UInt8]: ScanPosition] = [:]
    /// The tombstones of the present pass over the index.
    private var pass: TombstoneWork?
    /// When the next pass over the index may begin.
    private var nextPass = MonotonicTime.now

    /// Returns the work of the next step; nil if there is nothing to do now.
    ///
    /// While the index is rebuilt the tombstones stay: a record may have an older one of the same key, which would
    /// reappear.
    mutating func next(
      among tombstones: [Tombstone], in database: RecordDatabase, isPaced: Bool
    ) -> TombstoneWork? {
      let isComplete = database.isIndexComplete
      if let single = tombstones.first(where: { !$0.scope.needsHostPass && (isComplete || $0.scope == .everything) }) {
        return TombstoneWork(tombstones: [single], position: positions[single.metaKey] ?? .start)
      }
      guard isComplete else { return nil }
      let known = pass.flatMap { tombstones.contains($0.first) ? $0 : nil }
      if let known, case .found(let rows) = known.position, !rows.isExhausted { return known }
      let start = MonotonicTime.now
      guard !isPaced || start >= nextPass else { return nil }
      if let known, case .found(let rows) = known.position {
        pass = rows.next().map {
          TombstoneWork(tombstones: known.tombstones, position: .found($0))
        }
      } else {
        let shared = Array(tombstones.filter { $0.scope.needsHostPass }.prefix(Self.maximumSharedCount))
        let tags = shared.map { $0.scope.hostPrefix.flatMap { database.hostTag(ofPrefix: $0) } }
        pass = HostPass(over: database.index, hostTags: tags.contains(nil) ? nil : Set(tags.compactMap(\.self))).map {
          TombstoneWork(tombstones: shared, position: .found($0))
        }
      }
      nextPass = .now + start.duration(to: .now) * 3
      return pass
    }

    /// Records what a step has left.
    mutating func record(_ rest: TombstoneWork?, of work: TombstoneWork) {
      if work.first.scope.needsHostPass { pass = rest } else { positions[work.first.metaKey] = rest?.position }
    }
  }
}
