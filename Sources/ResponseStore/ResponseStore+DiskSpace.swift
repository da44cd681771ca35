import LMDB

/// Room that goes back to the file system: `data.mdb` never shrinks by itself.
extension ResponseStore {
  /// After much was removed, and whenever the directory takes more than the capacity. True if there is more to do.
  func giveRoomBack() throws(LMDBError) -> Bool {
    let isOverCapacity = diskByteCount > capacityByteCount
    if isOverCapacity { storeDirectory.deleteWhatWasSetAside() }
    if let position = maintenance.withLock({ $0.releasePosition }) { return try giveRoomBack(from: position) }
    let isWanted = maintenance.withLock { state -> Bool in
      // What was freed once and could not be given back, because of a reader or the file system, waits for more.
      defer { state.wantsRelease = false }
      return state.wantsRelease
    }
    // A little is not worth the commits, and would soon be taken again.
    let surplus = try diskByteCount - livePageCount() * file.pageByteCount
    let isWorthIt = isOverCapacity && diskByteCount > capacityByteCount && surplus > capacityByteCount / 32
    guard isWanted || isWorthIt else { return false }
    // What the last transactions freed cannot be given back before two more have been committed.
    for _ in 0..<2 { try touch() }
    return try giveRoomBack(from: .start)
  }

  private func giveRoomBack(from position: Environment.FreePagePosition) throws(LMDBError) -> Bool {
    // A few at a time: making a hole may take a millisecond, and writers wait meanwhile.
    let next = try file.environment.releaseFreePages(from: position, maximumPageCount: 128).next
    maintenance.withLock { $0.releasePosition = next }
    return next != nil
  }

  /// Sees to the bound where the map's size does not: data that was set aside, and a file from a time of a larger
  /// capacity. Costs a few system calls.
  func keepWithinMap() {
    let ceiling = StorageFormat.mapByteCount(
      capacityByteCount: capacityByteCount, pageByteCount: file.pageByteCount)
    guard diskByteCount > ceiling + StorageFormat.otherFilesByteCount else { return }
    storeDirectory.deleteWhatWasSetAside()
    do throws(LMDBError) {
      while diskByteCount > ceiling, try giveRoomBack() {}
    } catch {
      log(.failedWrite, "Room could not be given back to the file system: \(error)")
    }
  }

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
