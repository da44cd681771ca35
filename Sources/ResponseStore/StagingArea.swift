import HTTPCaching

/// What was stored and is not yet committed, by key: what makes a store readable at once.
///
/// A hash table whose responses are linked to one another where they share a place, the newest first. A dictionary would hash
/// the keys of whole neighbourhoods anew whenever the writer takes one out, and need memory for each.
final class StagingArea: Sendable {
  private static let placeCount = 1 << 14
  /// The newest response at each place.
  private let places = Monitor([StagedResponse?](repeating: nil, count: placeCount))
  /// Lets readers pass without the lock where nothing is staged for their key.
  private let keys = StagedKeys()

  var isEmpty: Bool { keys.isEmpty }

  /// False if nothing is staged for the key.
  func mayContain(_ key: RequestKey) -> Bool { !keys.isEmpty && keys.mayContain(key.spreadingDigest) }

  /// Adds a response, in front of whatever was staged for the same variant.
  func insert(_ response: StagedResponse) {
    let digest = response.head.layout { RequestKey.spreadingDigest(of: $0.key) }
    places.withLock { places in
      let place = place(of: digest)
      response.link = StagedResponse.Link(digest: digest, next: places[place])
      places[place] = response
      keys.add(digest)
    }
  }

  /// Takes out what was written, or given up: a few at a time, as others wait for the lock, and a thread that has it may lose its
  /// processor.
  func remove(_ written: [StagedResponse]) {
    for start in stride(from: 0, to: written.count, by: 32) {
      places.withLock { places in
        for response in written[start..<min(start + 32, written.count)] {
          let digest = response.link.digest
          if Self.unlink(response, from: &places[place(of: digest)]) { keys.remove(digest) }
        }
      }
    }
  }

  /// Returns whether the response was there.
  private static func unlink(_ response: StagedResponse, from newest: inout StagedResponse?) -> Bool {
    guard newest !== response else {
      newest = response.link.next
      response.link.next = nil
      return true
    }
    var staged = newest
    while let current = staged {
      if current.link.next === response {
        current.link.next = response.link.next
        response.link.next = nil
        return true
      }
      staged = current.link.next
    }
    return false
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
    return places.withLock { places in
      var found: [StagedResponse] = []
      var staged = places[place(of: digest)]
      while let response = staged {
        if response.link.digest == digest, response.head.layout({ $0.hasKey(key.bytes) }) { found.append(response) }
        staged = response.link.next
      }
      return found
    }
  }

  private func place(of digest: UInt64) -> Int { Int(digest & UInt64(Self.placeCount - 1)) }
}
