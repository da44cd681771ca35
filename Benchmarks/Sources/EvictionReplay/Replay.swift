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

  var objectHitRatio: Double { requests == 0 ? 0 : Double(hits) / Double(requests) }
  var byteHitRatio: Double { requestedByteCount == 0 ? 0 : Double(hitByteCount) / Double(requestedByteCount) }

  private enum Key: String, CodingKey {
    case trace, policy, capacityByteCount, requests, hits, requestedByteCount, hitByteCount, refusedStores,
      objectHitRatio, byteHitRatio
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
    try container.encode(objectHitRatio, forKey: .objectHitRatio)
    try container.encode(byteHitRatio, forKey: .byteHitRatio)
  }
}

/// Replays a trace through a cache in memory of a given size, starting empty.
///
/// Every request counts. An object larger than the cache is not stored.
enum Replay {
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
}
