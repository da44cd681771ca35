import HTTPCaching

/// What was stored and is not yet committed, by key: what makes a store readable at once.
final class StagingArea: Sendable {
  private let responses = Monitor<[RequestKey: [StagedResponse]]>([:])
  /// Lets readers pass without the lock where nothing is staged for their key.
  private let keys = StagedKeys()

  var isEmpty: Bool { keys.isEmpty }

  /// False if nothing is staged for the key.
  func mayContain(_ key: RequestKey) -> Bool { keys.mayContain(key) }

  /// Adds a response, in front of whatever was staged for the same variant.
  func insert(_ response: StagedResponse) {
    responses.withLock { responses in
      responses[response.key, default: []].append(response)
      keys.add(response.key)
    }
  }

  /// Takes out what was written, or given up.
  func remove(_ written: some Sequence<StagedResponse>) {
    responses.withLock { responses in
      for response in written {
        // One search for each: readers wait for this lock.
        guard let place = responses.index(forKey: response.key),
          let index = responses.values[place].firstIndex(where: { $0 === response })
        else { continue }
        if responses.values[place].count == 1 {
          responses.remove(at: place)
        } else {
          responses.values[place].remove(at: index)
        }
        keys.remove(response.key)
      }
    }
  }

  /// What was last staged for a variant.
  func newest(of key: RequestKey, vary: VarySelection) -> StagedResponse? {
    responses.withLock { $0[key]?.last { $0.vary == vary } }
  }

  /// Whether anything is staged for a key.
  func concerns(_ key: RequestKey) -> Bool {
    responses.withLock { $0[key] != nil }
  }

  /// The variants staged for a key, newest first; a variant that was staged again appears once.
  func variants(of key: RequestKey) -> [StagedResponse] {
    let staged = responses.withLock { $0[key] ?? [] }
    var variants: [StagedResponse] = []
    for response in staged.reversed() where !variants.contains(where: { $0.vary == response.vary }) {
      variants.append(response)
    }
    return variants
  }
}
