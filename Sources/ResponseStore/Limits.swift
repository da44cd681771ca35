/// The page counts that follow from a capacity.
struct Limits: Sendable, Equatable {
  /// What the directory may take, without the 10 % on top.
  let capacityByteCount: Int
  /// The most bytes that one transaction writes.
  let batchByteCount: Int
  /// The most records that one transaction writes where each is likely to copy another page.
  let batchCount: Int
  /// The writer makes room rather than let live pages pass this.
  let livePageCount: Int
  /// The eviction thread starts above this…
  let highPageCount: Int
  /// …and stops below this, so that the writer finds room.
  let lowPageCount: Int
  /// The pages that one eviction transaction frees, roughly.
  let evictionPageCount: Int

  init(capacityByteCount: Int, chunkByteCount: Int, pageByteCount: Int) {
    self.capacityByteCount = capacityByteCount
    batchByteCount = StorageFormat.batchByteCount(capacityByteCount: capacityByteCount)
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacityByteCount, pageByteCount: pageByteCount)
    let headroom = StorageFormat.headroomPageCount(
      mapByteCount: mapByteCount, batchByteCount: batchByteCount, chunkByteCount: chunkByteCount,
      pageByteCount: pageByteCount)
    let mapPageCount = mapByteCount / pageByteCount
    // With large chunks an eighth: the fewer pages are free, the more they lie in pieces, and the longer a commit takes.
    let isLargeChunk = StorageFormat.isLarge(chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
    livePageCount = min(mapPageCount - headroom, mapPageCount - mapPageCount / (isLargeChunk ? 8 : 16))
    // A record changes three or four pages, and the copies of three transactions must find room beside one another.
    let recordCount = (mapPageCount - livePageCount) / 12
    batchCount = max(32, recordCount)
    // The margins are a batch each where there is room for that.
    let margin = min(batchByteCount / pageByteCount + 16, livePageCount / 16)
    highPageCount = livePageCount - margin
    lowPageCount = highPageCount - margin
    evictionPageCount = min(256, max(16, recordCount))
  }
}
