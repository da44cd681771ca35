import HTTPCaching

/// What was stored and is not yet committed, by key: what makes a store readable at once.
///
/// A hash table whose responses are linked to one another where they share a place, the newest first. A dictionary would hash
/// the keys of whole neighbourhoods anew whenever the writer takes one out, and need memory for each.
///
/// The places are shared out among a few locks, each of which the writer holds for one response at a time: where it took one
/// lock again and again to empty a long queue, a lookup woke for it ten times in a row and found it taken, for 13 ms in all.
final class StagingArea: Sendable {
  private static let placeCount: UInt64 = 256
  private static let shardCount: UInt64 = 64
  /// The newest response at each place.
  private let shards = (0..<shardCount).map { _ in Monitor([StagedResponse?](repeating: nil, count: Int(placeCount))) }
  /// Lets readers pass without a lock where nothing is staged for their key.
  private let keys = StagedKeys()
  /// For changes of ``keys``. No reader waits for it.
  private let counting = Monitor(())

  var isEmpty: Bool { keys.isEmpty }

  /// False if nothing is staged for the key.
  func mayContain(_ key: RequestKey) -> Bool { !keys.isEmpty && keys.mayContain(key.spreadingDigest) }

  /// Adds a response, in front of whatever was staged for the same variant. One after the other: the caller sees to that.
  func insert(_ response: StagedResponse) {
    withPlace(of: response.digest) { newest in
      response.next = newest
      newest = response
    }
    counting.withLock { _ in keys.add(response.digest) }
  }

  /// Takes out what was inserted, and has been written or given up.
  func remove(_ written: [StagedResponse]) {
    // A few at a time, as others who store wait for the counts, and a thread that has the lock may lose its processor.
    for start in stride(from: 0, to: written.count, by: 32) {
      let some = written[start..<min(start + 32, written.count)]
      for response in some { withPlace(of: response.digest) { Self.unlink(response, from: &$0) } }
      counting.withLock { _ in
        for response in some { keys.remove(response.digest) }
      }
    }
  }

  private static func unlink(_ response: StagedResponse, from newest: inout StagedResponse?) {
    defer { response.next = nil }
    guard newest !== response else {
      newest = response.next
      return
    }
    var staged = newest
    while let current = staged {
      if current.next === response {
        current.next = response.next
        return
      }
      staged = current.next
    }
  }

  /// What was last staged for a variant.
  func newest(of key: RequestKey, vary: VarySelection) -> StagedResponse? {
    staged(for: key).first { $0.vary == vary }
  }

  /// Whether anything is staged for a key.
  func concerns(_ key: RequestKey) -> Bool {
    !staged(for: key).isEmpty
  }

  /// The variants staged for a key, newest first; a variant that was staged again appears once.
  func variants(of key: RequestKey) -> [StagedResponse] {
    var variants: [StagedResponse] = []
    for response in staged(for: key) where !variants.contains(where: { $0.vary == response.vary }) {
      variants.append(response)
    }
    return variants
  }

  /// All that is staged for a key, newest first.
  private func staged(for key: RequestKey) -> [StagedResponse] {
    let digest = key.spreadingDigest
    return withPlace(of: digest) { newest in
      var found: [StagedResponse] = []
      var staged = newest
      while let response = staged {
        if response.digest == digest, response.head.layout({ $0.hasKey(key.bytes) }) { found.append(response) }
        staged = response.next
      }
      return found
    }
  }

  /// Runs `body` with the newest response at a key's place, and the place's lock.
  @inline(__always)
  private func withPlace<R>(of digest: UInt64, _ body: (inout StagedResponse?) -> R) -> R {
    let place = Int(digest & (Self.placeCount - 1))
    return shards[Int((digest >> 16) & (Self.shardCount - 1))].withLock { places in body(&places[place]) }
  }
}
