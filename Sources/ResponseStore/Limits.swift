/// The page counts that follow from a capacity.
struct Limits: Sendable, Equatable {
  /// What the directory may take, without the 10 % on top.
  let capacityByteCount: Int
  /// The most pages that the data file may take on the disk: as many as its map has, or fewer where other files take more than usual.
  let roomPageCount: Int
  /// Whether the data file is longer, as it is from a time of a larger capacity: its map is no ceiling then.
  let isFileLong: Bool
  /// With such a file, the most pages that it may take on the disk when a transaction begins.
  let startPageCount: Int
  /// The most bytes that one transaction writes.
  let batchByteCount: Int
  /// The most records that one transaction writes where each is likely to copy another page.
  let batchCount: Int
  /// The writer makes room rather than let live pages pass this.
  let livePageCount: Int
  /// Above this far more is in use than ever comes of storing: a lower capacity is being applied.
  let shrinkingPageCount: Int
  /// The eviction thread starts above this…
  let highPageCount: Int
  /// …and stops below this, so that the writer finds room.
  let lowPageCount: Int
  /// The most records that one transaction evicts one by one.
  let evictionRecordCount: Int
  /// The most records of a segment that one transaction looks at, and about how many bytes they have.
  let cleaningRecordCount: Int
  let cleaningByteCount: Int
  /// The pages that one transaction frees, roughly, after a full map.
  let cautiousPageCount: Int
  /// The pages that it, or one that deletes behind a purge, may free; of larger bodies only the heads go at once.
  let freeablePageCount: Int
  /// The most records that one transaction deletes behind a purge.
  let purgeCount: Int
  /// The most records that the index has room for.
  let entryCount: Int
  /// Above this a lower capacity is being applied.
  let shrinkingEntryCount: Int
  /// The eviction thread starts above this many records, and stops below the second number.
  let highEntryCount: Int
  let lowEntryCount: Int

  /// - Parameters:
  ///   - filePageCount: How many pages the data file has.
  ///   - otherByteCount: What the directory's other files may take.
  init(
    capacityByteCount: Int, filePageCount: Int = 0, otherByteCount: Int = 0, chunkByteCount: Int, pageByteCount: Int
  ) {
    self.capacityByteCount = capacityByteCount
    batchByteCount = StorageFormat.batchByteCount(capacityByteCount: capacityByteCount)
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacityByteCount, pageByteCount: pageByteCount)
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacityByteCount)
    roomPageCount = max(min(mapByteCount, bound - otherByteCount) / pageByteCount, 128)
    isFileLong = filePageCount > roomPageCount
    let headroom = StorageFormat.headroomPageCount(
      mapByteCount: roomPageCount * pageByteCount, batchByteCount: batchByteCount, chunkByteCount: chunkByteCount,
      pageByteCount: pageByteCount)
    // With large chunks an eighth: the fewer pages are free, the more they lie in pieces, and the longer a commit takes. With a long
    // file too: the fewer, the more often they have to be given back.
    let isLargeChunk = StorageFormat.isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    let share = isLargeChunk || isFileLong ? 8 : 16
    livePageCount = min(roomPageCount - headroom, roomPageCount - roomPageCount / share)
    shrinkingPageCount = livePageCount + (roomPageCount - livePageCount) / 6
    startPageCount = roomPageCount - (roomPageCount - livePageCount) / 3
    // A record changes three or four pages, and the copies of three transactions must find room beside one another. A few more are
    // no harm where the map is the ceiling: what does not fit is tried again.
    let recordCount = (roomPageCount - livePageCount) / 12
    batchCount = max(isFileLong ? 4 : 32, recordCount)
    // The margins are a batch each where there is room for that.
    let margin = min(batchByteCount / pageByteCount + 16, livePageCount / 16)
    highPageCount = livePageCount - margin
    lowPageCount = highPageCount - margin
    evictionRecordCount = min(256, max(isFileLong ? 4 : 16, recordCount))
    // Neighbors in a segment share leaves. Some of them are written again, before anything that is freed can be used.
    let room = roomPageCount - livePageCount
    cleaningRecordCount = isFileLong ? 4 * evictionRecordCount : min(max(4 * recordCount, 32), 4096)
    cleaningByteCount = max(min(batchByteCount, room * pageByteCount / 8), 32 << 10)
    cautiousPageCount = evictionRecordCount
    // Where chunks are large there mostly are pages in a row, to write the numbers of many.
    freeablePageCount = isLargeChunk ? 2048 : Counters().freeablePageCount
    purgeCount = isFileLong ? evictionRecordCount : 4 * evictionRecordCount
    entryCount = IndexFile.maximumRecordCount(
      byteCount: StorageFormat.indexByteCount(capacityByteCount: capacityByteCount))
    shrinkingEntryCount = entryCount + entryCount / 16
    highEntryCount = entryCount - entryCount / 16
    lowEntryCount = highEntryCount - entryCount / 32
  }
}
