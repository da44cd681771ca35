/// The page counts that follow from a capacity.
struct PageBudget: Sendable, Equatable {
  /// The capacity of the directory, without the additional 10%.
  let capacityByteCount: Int
  /// The maximum number of pages of the data file on disk: those of its map, or fewer if other files are larger than
  /// usual.
  let maximumFilePageCount: Int
  /// Whether the data file is longer than that, because the capacity was larger. Its map is no ceiling then.
  let isFileOversized: Bool
  /// For an oversized file: the maximum number of pages on disk when a transaction begins.
  let transactionStartPageCount: Int
  /// The most bytes that one transaction writes.
  let batchByteCount: Int
  /// The most records that one transaction writes where each is likely to copy another page.
  let batchCount: Int
  /// The maximum number of live pages. The writer frees pages before it exceeds this.
  let maximumLivePageCount: Int
  /// Above this number of live pages, a lower capacity is being applied.
  let shrinkingPageCount: Int
  /// The high watermark of live pages: the eviction thread starts above it.
  let highPageCount: Int
  /// The low watermark of live pages: the eviction thread stops below it.
  let lowPageCount: Int
  /// The most records that one transaction evicts one by one.
  let evictionRecordCount: Int
  /// The most records of a segment that one transaction examines, and their bytes, about.
  let cleaningRecordCount: Int
  let cleaningByteCount: Int
  /// The pages that one transaction frees after `MDB_MAP_FULL`, about.
  let cautiousPageCount: Int
  /// The most pages that one transaction frees, if many pages are free. Larger bodies lose only their record headers at
  /// once.
  let freeablePageCount: Int
  /// The most records that one transaction examines to delete behind a purge: contiguous ones, and scattered ones.
  let purgedRunCount: Int
  let scatteredPurgeCount: Int
  /// The most records that fit into the index.
  let entryCount: Int
  /// Above this number of records, a lower capacity is being applied.
  let shrinkingEntryCount: Int
  /// The high and low watermarks of records.
  let highEntryCount: Int
  let lowEntryCount: Int

  /// - Parameters:
  ///   - filePageCount: How many pages the data file has.
  ///   - otherByteCount: The maximum size of the directory's other files.
  init(
    capacityByteCount: Int, filePageCount: Int = 0, otherByteCount: Int = 0, chunkByteCount: Int, pageByteCount: Int
  ) {
    self.capacityByteCount = capacityByteCount
    batchByteCount = StorageFormat.batchByteCount(capacityByteCount: capacityByteCount)
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacityByteCount, pageByteCount: pageByteCount)
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacityByteCount)
    maximumFilePageCount = max(min(mapByteCount, bound - otherByteCount) / pageByteCount, 128)
    isFileOversized = filePageCount > maximumFilePageCount
    let headroom = StorageFormat.headroomPageCount(
      mapByteCount: maximumFilePageCount * pageByteCount, batchByteCount: batchByteCount,
      chunkByteCount: chunkByteCount,
      pageByteCount: pageByteCount)
    // An eighth with large chunks: with fewer free pages, these are more fragmented, and commits take longer. An eighth
    // for an oversized file, too: with fewer free pages, holes must be punched more often.
    let isLargeChunk = StorageFormat.isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    let share = isLargeChunk || isFileOversized ? 8 : 16
    maximumLivePageCount = min(maximumFilePageCount - headroom, maximumFilePageCount - maximumFilePageCount / share)
    shrinkingPageCount = maximumLivePageCount + (maximumFilePageCount - maximumLivePageCount) / 6
    transactionStartPageCount = maximumFilePageCount - (maximumFilePageCount - maximumLivePageCount) / 3
    // A record changes three or four pages, and the copies of three transactions must fit. A few more records do no
    // harm where the map is the ceiling: a transaction that does not fit is retried.
    let recordCount = (maximumFilePageCount - maximumLivePageCount) / 12
    batchCount = max(isFileOversized ? 4 : 32, recordCount)
    // Each margin is a batch, if the capacity allows that.
    let margin = min(batchByteCount / pageByteCount + 16, maximumLivePageCount / 16)
    highPageCount = maximumLivePageCount - margin
    lowPageCount = highPageCount - margin
    evictionRecordCount = min(256, max(isFileOversized ? 4 : 16, recordCount))
    // Neighbors in a segment share leaves. Some records are moved before any freed page can be reused.
    let reserve = maximumFilePageCount - maximumLivePageCount
    cleaningRecordCount = isFileOversized ? 4 * evictionRecordCount : min(max(4 * recordCount, 32), 4096)
    cleaningByteCount = max(min(batchByteCount, reserve * pageByteCount / 8), 32 << 10)
    cautiousPageCount = evictionRecordCount
    // The list of 512 freed pages takes another page of contiguous ones. If many pages are free, there usually is one.
    freeablePageCount = min(max(reserve / 4, isLargeChunk ? 2048 : 0, PersistentCounters().freeablePageCount), 8192)
    // Larger steps write the same branch pages and the free list less often.
    purgedRunCount = isFileOversized ? 4 * evictionRecordCount : min(max(4 * recordCount, 32), 16_384)
    scatteredPurgeCount = isFileOversized ? evictionRecordCount : min(max(recordCount, 32), 4096)
    entryCount = IndexFile.maximumRecordCount(
      byteCount: StorageFormat.indexByteCount(capacityByteCount: capacityByteCount))
    shrinkingEntryCount = entryCount + entryCount / 16
    highEntryCount = entryCount - entryCount / 16
    lowEntryCount = highEntryCount - entryCount / 32
  }
}
