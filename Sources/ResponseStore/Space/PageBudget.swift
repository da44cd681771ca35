/// The page counts that follow from a capacity.
struct PageBudget: Sendable, Equatable {
  /// The capacity of the directory, without the additional 10%.
  let capacityByteCount: Int
  /// The maximum number of pages of the data file on disk: those of its map, or fewer if other files are larger than
  /// usual.
  let maximumFilePageCount: Int
  /// Whether the capacity is too low for the files of a larger one, so that they can exceed it.
  let isCapacityTooLowForFiles: Bool
  /// Whether the data file has more pages than that, because the capacity was larger or a reader pinned free pages.
  ///
  /// The map then does not limit the disk usage.
  let isFileOversized: Bool
  /// For an oversized file: the maximum number of pages on disk when a transaction begins.
  let transactionStartPageCount: Int
  /// The maximum number of bytes that one transaction writes.
  let batchByteCount: Int
  /// The maximum number of records that one transaction writes if each is likely to copy another page.
  let batchCount: Int
  /// The maximum number of live pages. The writer frees pages before it exceeds this.
  let maximumLivePageCount: Int
  /// Above this number of live pages, a lower capacity is being applied.
  let shrinkingPageCount: Int
  /// The high watermark of live pages: the eviction thread starts above it.
  let highPageCount: Int
  /// The low watermark of live pages: the eviction thread stops below it.
  let lowPageCount: Int
  /// The maximum number of records of a segment that one transaction examines.
  let cleaningRecordCount: Int
  /// The approximate maximum of their bytes.
  let cleaningByteCount: Int
  /// The approximate number of pages that one transaction frees after `MDB_MAP_FULL`.
  let cautiousPageCount: Int
  /// The maximum number of pages that one transaction frees if many pages are free.
  ///
  /// Of a record with a larger body, the transaction deletes only the record header.
  let freeablePageCount: Int
  /// The maximum number of adjacent records that one transaction examines for a removal.
  let removedRunCount: Int
  /// The maximum number of scattered records that one transaction examines for a removal.
  let scatteredRemovalCount: Int
  /// The maximum number of records that fit into the index.
  let entryCount: Int
  /// Above this number of records, a lower capacity is being applied.
  let shrinkingEntryCount: Int
  /// The high and low watermarks of the number of records.
  let highEntryCount: Int
  let lowEntryCount: Int

  /// Computes the budget of a capacity.
  ///
  /// - Parameters:
  ///   - filePageCount: The number of pages of the data file.
  ///   - otherByteCount: The maximum size of the directory's other files.
  init(
    capacityByteCount: Int, filePageCount: Int = 0, otherByteCount: Int = 0, chunkByteCount: Int, pageByteCount: Int
  ) {
    self.capacityByteCount = capacityByteCount
    batchByteCount = StorageFormat.batchByteCount(capacityByteCount: capacityByteCount)
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacityByteCount, pageByteCount: pageByteCount)
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacityByteCount)
    let allowedPageCount = min(mapByteCount, bound - otherByteCount) / pageByteCount
    maximumFilePageCount = max(allowedPageCount, StorageFormat.minimumPageCount(filePageCount: filePageCount))
    isCapacityTooLowForFiles = maximumFilePageCount > allowedPageCount
    isFileOversized = filePageCount > maximumFilePageCount
    let headroom = StorageFormat.headroomPageCount(
      mapByteCount: maximumFilePageCount * pageByteCount, batchByteCount: batchByteCount,
      chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    // Keep an eighth of the pages free with large chunks, because fewer free pages are more fragmented and slow down
    // commits. Keep an eighth free in an oversized file, too, because fewer free pages require more hole punching.
    let isLargeChunk = StorageFormat.isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    let share = isLargeChunk || isFileOversized ? 8 : 16
    maximumLivePageCount = min(maximumFilePageCount - headroom, maximumFilePageCount - maximumFilePageCount / share)
    shrinkingPageCount = maximumLivePageCount + (maximumFilePageCount - maximumLivePageCount) / 6
    transactionStartPageCount = maximumFilePageCount - (maximumFilePageCount - maximumLivePageCount) / 3
    // A record changes three or four pages, and the copies of three transactions must fit. A few more records do no
    // harm if the map limits the disk usage: a transaction that does not fit is retried.
    let recordCount = (maximumFilePageCount - maximumLivePageCount) / 12
    batchCount = max(32, recordCount)
    // The watermarks are a batch apart, if the capacity allows that. In a large store they are several batches apart,
    // so that the eviction thread works ahead and the writer rarely has to evict.
    let batchPageCount = batchByteCount / pageByteCount + 16
    let ahead = min(max(maximumLivePageCount / 128, batchPageCount), 4 * batchPageCount)
    let margin = min(ahead, maximumLivePageCount / 16)
    highPageCount = maximumLivePageCount - margin
    lowPageCount = highPageCount - margin
    // Adjacent records share leaves. Some records are moved before any freed page can be reused.
    let reserve = maximumFilePageCount - maximumLivePageCount
    cleaningRecordCount = min(max(4 * recordCount, 32), 4096)
    cleaningByteCount = max(min(batchByteCount, reserve * pageByteCount / 8), 32 << 10)
    cautiousPageCount = min(256, max(16, recordCount))
    // LMDB's list of freed pages needs one more contiguous page for every 512 pages. If many pages are free, there
    // usually is one.
    freeablePageCount = min(max(reserve / 4, isLargeChunk ? 2048 : 0, FreeingBudget.defaultPageCount), 8192)
    // Larger steps write the same branch pages and the free list less often.
    removedRunCount = min(max(4 * recordCount, 32), 16_384)
    scatteredRemovalCount = min(max(recordCount, 32), 4096)
    entryCount = IndexFile.maximumRecordCount(
      byteCount: StorageFormat.indexByteCount(capacityByteCount: capacityByteCount))
    shrinkingEntryCount = entryCount + entryCount / 16
    highEntryCount = entryCount - entryCount / 16
    lowEntryCount = highEntryCount - entryCount / 32
  }
}
