import ResponseStore

/// The counts of a replay.
struct Outcome: Encodable {
  var trace: String
  var policy: String
  var capacityByteCount: Int
  var requests = 0
  var hits = 0
  var requestedByteCount = 0
  var hitByteCount = 0
  /// The writes that a store on disk dropped, for example because a body was too large; nil for the other replays.
  var refusedStores: Int?
  /// Bytes of records that survived the eviction of their segment and were written again, per byte stored.
  var rewrittenShare: Double?

  var objectHitRatio: Double { requests == 0 ? 0 : Double(hits) / Double(requests) }
  var byteHitRatio: Double { requestedByteCount == 0 ? 0 : Double(hitByteCount) / Double(requestedByteCount) }

  private enum Key: String, CodingKey {
    case trace, policy, capacityByteCount, requests, hits, requestedByteCount, hitByteCount, refusedStores,
      rewrittenShare, objectHitRatio, byteHitRatio
  }

  func encode(to encoder: any Encoder) throws {
    var container = encoder.container(keyedBy: Key.self)
    try container.encode(trace, forKey: .trace)
    try container.encode(policy, forKey: .policy)
    try container.encode(capacityByteCount, forKey: .capacityByteCount)
    try container.encode(requests, forKey: .requests)
    try container.encode(hits, forKey: .hits)
    try container.encode(requestedByteCount, forKey: .requestedByteCount)
    try container.encode(hitByteCount, forKey: .hitByteCount)
    try container.encodeIfPresent(refusedStores, forKey: .refusedStores)
    try container.encodeIfPresent(rewrittenShare, forKey: .rewrittenShare)
    try container.encode(objectHitRatio, forKey: .objectHitRatio)
    try container.encode(byteHitRatio, forKey: .byteHitRatio)
  }
}

/// Replays a trace through a cache of a given size, starting empty.
///
/// Every request counts. An object larger than the cache is not stored.
enum Replay {
  /// Evicts record by record through ``RecordIndex`` and ``VictimSampler``, like stores of format 4.
  ///
  /// - Parameters:
  ///   - restartsHalfway: Whether the index is lost in the middle of the trace, while the records stay.
  ///   - chargesPages: Whether an object counts with its size on disk, in pages, and not with the bytes of its body.
  static func oneByOne(
    _ trace: Trace, capacityByteCount: Int, restartsHalfway: Bool = false, chargesPages: Bool = false
  ) -> Outcome {
    var outcome = Outcome(
      trace: trace.name,
      policy: restartsHalfway ? "one by one, restarted" : chargesPages ? "one by one, in pages" : "one by one",
      capacityByteCount: capacityByteCount)
    var known = KnownUses(cellCount: IndexLayout.minimumCellCount)
    var resident: [UInt64: Int] = [:]
    var keys: [UInt64: UInt64] = [:]
    var rows: [UInt64: UInt64] = [:]
    var used = 0
    var nextRowID: UInt64 = 1
    for (number, request) in trace.requests.enumerated() {
      let charge = chargesPages ? pageByteCount(ofBody: request.byteCount) : request.byteCount
      if restartsHalfway, number == trace.requests.count / 2 {
        // As after the loss of the file: add the records again in the order of their row IDs, without use counts.
        known = KnownUses(cellCount: known.cellCount)
        for (rowID, key) in keys.sorted(by: { $0.key < $1.key }) {
          known.insert(mix(key), rowID: rowID, byteCount: resident[key, default: 0])
        }
      }
      outcome.requests += 1
      outcome.requestedByteCount += request.byteCount
      let digest = mix(request.key)
      if resident[request.key] != nil {
        outcome.hits += 1
        outcome.hitByteCount += request.byteCount
        known.recordUse(of: digest)
        continue
      }
      guard charge <= capacityByteCount else { continue }
      while used + charge > capacityByteCount, let victim = known.evict() {
        if let key = keys.removeValue(forKey: victim.rowID), let byteCount = resident.removeValue(forKey: key) {
          used -= byteCount
        }
      }
      known.insert(digest, rowID: nextRowID, byteCount: charge)
      rows[request.key] = nextRowID
      nextRowID += 1
      resident[request.key] = charge
      keys[rows[request.key, default: 0]] = request.key
      used += charge
    }
    return outcome
  }

  /// Estimates the disk usage of a body: its rows, and whole pages unless the body is in the record header's row.
  private static func pageByteCount(ofBody byteCount: Int) -> Int {
    let rows = 400
    guard byteCount > 1700 else { return byteCount + rows }
    // A short rest of the body is stored in a leaf page with other rows.
    let wholePages = (byteCount + 15) / 4096 * 4096
    let tail = byteCount + 16 - wholePages
    return wholePages + rows + (wholePages > 0 && tail <= 1024 ? tail : 4096)
  }

  /// Evicts the least recently used object, for comparison.
  static func leastRecentlyUsed(_ trace: Trace, capacityByteCount: Int) -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: "LRU", capacityByteCount: capacityByteCount)
    var lastUse: [UInt64: Int] = [:]
    var order: [(key: UInt64, use: Int)] = []
    var next = 0
    var used = 0
    var sizes: [UInt64: Int] = [:]
    for (number, request) in trace.requests.enumerated() {
      outcome.requests += 1
      outcome.requestedByteCount += request.byteCount
      if lastUse[request.key] != nil {
        outcome.hits += 1
        outcome.hitByteCount += request.byteCount
      } else {
        guard request.byteCount <= capacityByteCount else { continue }
        while used + request.byteCount > capacityByteCount {
          let oldest = order[next]
          next += 1
          guard lastUse[oldest.key] == oldest.use else { continue }
          lastUse[oldest.key] = nil
          used -= sizes[oldest.key] ?? 0
        }
        used += request.byteCount
        sizes[request.key] = request.byteCount
      }
      lastUse[request.key] = number
      order.append((request.key, number))
    }
    return outcome
  }

  /// Spreads a key over 64 bits, like the store's digests.
  static func mix(_ key: UInt64) -> UInt64 {
    var z = key &+ 0x9e37_79b9_7f4a_7c15
    z = (z ^ (z >> 30)) &* 0xbf58_476d_1ce4_e5b9
    z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
    return z ^ (z >> 31)
  }
}
