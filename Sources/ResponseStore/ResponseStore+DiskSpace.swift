import LMDB

/// Room that goes back to the file system: `data.mdb` never shrinks by itself.
extension ResponseStore {
  /// After much was removed, and whenever the directory takes too much. True if there is more to do.
  ///
  /// While the file fits its map that is when all of the map is in use; short of that, free pages are left to be used again: holes
  /// cost a millisecond each, and what is written into them lies in pieces on the disk. A file from a time of a larger
  /// capacity is kept at the capacity, so that what a few transactions write finds room.
  func giveRoomBack(maximumPageCount: Int = 128) throws(LMDBError) -> Bool {
    let ceiling = limits.withLock({ $0.isFileLong }) ? capacityByteCount : diskCeiling
    let isOverCeiling = diskByteCount > ceiling
    if isOverCeiling { storeDirectory.deleteWhatWasSetAside() }
    if let position = maintenance.withLock({ $0.releasePosition }) {
      return try giveRoomBack(from: position, maximumPageCount: maximumPageCount)
    }
    let isWanted = maintenance.withLock { state -> Bool in
      // What was freed once and could not be given back, because of a reader or the file system, waits for more.
      defer { state.wantsRelease = false }
      return state.wantsRelease
    }
    // A little is not worth the commits, and would soon be taken again.
    let surplus = try diskByteCount - livePageCount() * file.pageByteCount
    let isWorthIt = isOverCeiling && diskByteCount > ceiling && surplus > capacityByteCount / 32
    guard isWanted || isWorthIt else { return false }
    // What the last transactions freed cannot be given back before two more have been committed.
    for _ in 0..<2 { try touch() }
    return try giveRoomBack(from: .start, maximumPageCount: maximumPageCount)
  }

  private func giveRoomBack(
    from position: Environment.FreePagePosition, maximumPageCount: Int
  ) throws(LMDBError) -> Bool {
    // A few at a time: making a hole may take a millisecond, and writers wait meanwhile.
    let next = try file.environment.releaseFreePages(
      from: position, maximumPageCount: maximumPageCount
    ).next
    maintenance.withLock { $0.releasePosition = next }
    return next != nil
  }

  /// What the directory takes when all of the map is in use.
  var diskCeiling: Int {
    StorageFormat.mapByteCount(capacityByteCount: capacityByteCount, pageByteCount: file.pageByteCount)
      + StorageFormat.otherFilesByteCount + capacityByteCount / 32
      + StorageFormat.lockFileByteCount(capacityByteCount: capacityByteCount)
  }

  /// A write transaction. With a file from a time of a larger capacity, whose map is no ceiling, it begins only when the disk has room
  /// within the bound for what one writes: each takes the oldest free pages first, and those are holes.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` where there is none, as where the map is the ceiling.
  func writeWithinRoom<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    var attempt = 0
    while true {
      // Looked at with the write lock: nobody else writes in between.
      let result = try file.write { (transaction) throws(LMDBError) -> R? in
        try hasRoom(isLastAttempt: attempt == 2, in: transaction) ? try body(transaction) : nil
      }
      if let result { return result }
      if attempt == 1, file.environment.oldestSnapshot() >= file.environment.lastTransactionID {
        // What the last transactions freed cannot be given back before two more have been committed. Where a reader pins it, they
        // would only take room themselves.
        for _ in 0..<2 { try touch() }
      }
      try file.environment.releaseFreePages()
      attempt += 1
    }
  }

  private func hasRoom(isLastAttempt: Bool, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    try adoptCapacity(in: transaction)
    var limits = limits.withLock { $0 }
    let filePageCount = file.environment.information.lastPageNumber + 1
    guard filePageCount > limits.roomPageCount else { return true }
    if !limits.isFileLong {
      // It has become so: pages that a reader pinned were not to be had.
      setLimits(capacityByteCount: limits.capacityByteCount)
      limits = self.limits.withLock { $0 }
    }
    let pageCount = storeDirectory.allocatedDataByteCount / file.pageByteCount
    if pageCount <= limits.startPageCount { return true }
    // While a lower capacity is being applied, to evict is the way to room, and then to give it back; stores go on meanwhile.
    if try file.environment.livePageCount(in: transaction) > limits.shrinkingPageCount { return true }
    if maintenance.withLock({ $0.wantsSmallerFile }) { return true }
    guard isLastAttempt else { return false }
    throw LMDBError(code: .mapFull, function: "mdb_put")
  }

  /// After a capacity was applied, when what it has no room for is evicted.
  func shrinkFileIfWanted() {
    guard maintenance.withLock({ $0.wantsSmallerFile }) else { return }
    shrinkFile()
    maintenance.withLock { $0.wantsSmallerFile = false }
  }

  /// Has the directory take less after the capacity was lowered: data that was set aside goes, and the free pages of a file
  /// that is longer than its map should be. Costs a few system calls where there is nothing to do.
  func shrinkFile() {
    let ceiling = StorageFormat.mapByteCount(
      capacityByteCount: capacityByteCount, pageByteCount: file.pageByteCount)
    guard diskByteCount > diskCeiling else { return }
    storeDirectory.deleteWhatWasSetAside()
    let roomPageCount = limits.withLock { $0.roomPageCount }
    do throws(LMDBError) {
      // More than it ever takes later: the capacity was lowered just now, and for moving pages there is still room.
      if storeDirectory.allocatedDataByteCount / file.pageByteCount > roomPageCount {
        try clearEndOfFile(from: roomPageCount)
      }
      while diskByteCount > ceiling, !isClosing, try giveRoomBack(maximumPageCount: 1024) { noteProgress() }
    } catch {
      log(.failedWrite, "Room could not be given back to the file system: \(error)")
    }
  }

  /// Moves what lies at page `limit` or behind it to free pages in front, so that the room there can be given back in a few
  /// long pieces: to make a hole in the file costs the same for one page and for a thousand.
  ///
  /// A page is moved by storing what it holds again. Pages that stay, because a reader looks at them or LMDB chooses another
  /// free page, are no harm: the holes are made around them.
  private func clearEndOfFile(from limit: Int) throws(LMDBError) {
    // Where there are enough free pages in front, each pass leaves less behind.
    for _ in 0..<8 where try livePageCount() < limit {
      if isClosing { return }
      var moved = try movePages(of: file.bodies, from: limit)
      for band in Band.all { moved += try movePages(of: file.heads[band], from: limit) }
      moved += try movePages(of: file.dates, from: limit)
      moved += try movePages(of: file.expiries, from: limit)
      if moved < 64 { return }
    }
  }

  /// How many leaf pages it moved.
  private func movePages<K, V>(of table: Table<K, V>, from limit: Int) throws(LMDBError) -> Int {
    var start: [UInt8]?
    var moved = 0
    while !isClosing {
      noteProgress()
      let found = try file.environment.read { [start] (transaction) throws(LMDBError) in
        try table.keysOfLeafPages(from: limit, startingAt: start, maximumCount: 512, in: transaction)
      }
      if !found.keys.isEmpty {
        try file.write { (transaction) throws(LMDBError) in
          for key in found.keys {
            // Gone by now, or replaced: then its page has been moved anyway.
            let value = try withBytes(of: key) { (key) throws(LMDBError) in
              try table.withValue(forBytes: key, in: transaction) { (value) throws(LMDBError) in
                value.withUnsafeBytes { [UInt8]($0) }
              }
            }
            guard let value else { continue }
            try withBytes(of: key) { (key) throws(LMDBError) in
              _ = try withBytes(of: value) { (value) throws(LMDBError) in
                try table.put(bytes: value, forBytes: key, in: transaction)
              }
            }
          }
        }
        noteCommit()
        moved += found.keys.count
      }
      guard let next = found.next else { return moved }
      start = next
    }
    return moved
  }

  /// Whoever closes the store does not wait for all of it; the next one to open it goes on.
  private var isClosing: Bool { maintenance.withLock { $0.isClosing } }

  /// Frees what is not needed when the disk is full; true if there was something.
  func freeDiskSpace() -> Bool {
    let before = diskByteCount
    storeDirectory.deleteWhatWasSetAside()
    do throws(LMDBError) {
      try file.environment.releaseFreePages()
    } catch {
      // Whoever is told that nothing was freed gives up what it was about to do.
    }
    return diskByteCount < before
  }
}
