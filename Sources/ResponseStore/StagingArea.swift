import HTTPCaching
import Synchronization

/// What was stored and is not yet committed, by key: what makes a store readable at once.
final class StagingArea: Sendable {
  private let responses = Monitor<[RequestKey: [StagedResponse]]>([:])
  /// What a removal has taken out and not yet written down. Until then the older response that it was to replace is still
  /// on disk, and must not be found. Locked only within `responses`.
  private let removed = Monitor<[RequestKey: [StagedResponse]]>([:])
  /// Lets readers pass without the lock while nothing is staged, and nothing is being removed.
  private let count = Atomic<Int>(0)

  var isEmpty: Bool { count.load(ordering: .acquiring) == 0 }

  /// Adds a response, in front of whatever was staged for the same variant.
  func insert(_ response: StagedResponse) {
    responses.withLock { responses in
      responses[response.key, default: []].append(response)
      count.add(1, ordering: .releasing)
    }
  }

  /// Takes out what was written, or given up.
  func remove(_ written: some Sequence<StagedResponse>) {
    responses.withLock { responses in
      for response in written {
        guard let index = responses[response.key]?.firstIndex(where: { $0 === response }) else { continue }
        responses[response.key]?.remove(at: index)
        if responses[response.key]?.isEmpty == true { responses[response.key] = nil }
        count.subtract(1, ordering: .releasing)
      }
    }
  }

  /// Takes out what a removal covers, and what that was to replace: an older response must not come to light again because
  /// the newer one was removed. Returns what was covered, which ``forget(_:)`` wants when the removal is written down.
  func removeAll(coveredBy scope: RemovalScope) -> [StagedResponse] {
    responses.withLock { responses in
      let covered = takeAll(coveredBy: scope, from: &responses)
      removed.withLock { removed in
        for response in covered { removed[response.key, default: []].append(response) }
      }
      return covered
    }
  }

  /// Lets go of what a removal took out.
  func forget(_ written: [StagedResponse]) {
    guard !written.isEmpty else { return }
    removed.withLock { removed in
      for response in written {
        guard let index = removed[response.key]?.firstIndex(where: { $0 === response }) else { continue }
        removed[response.key]?.remove(at: index)
        if removed[response.key]?.isEmpty == true { removed[response.key] = nil }
        count.subtract(1, ordering: .releasing)
      }
    }
  }

  private func takeAll(
    coveredBy scope: RemovalScope, from responses: inout [RequestKey: [StagedResponse]]
  ) -> [StagedResponse] {
    if case .key(let bytes) = scope {
      return responses.removeValue(forKey: RequestKey(storedBytes: bytes)) ?? []
    }
    var removed: [StagedResponse] = []
    for (key, staged) in responses {
      let covered = staged.filter { $0.isCovered(by: scope) }
      guard !covered.isEmpty else { continue }
      let kept = staged.indices.filter { index in
        !staged[index...].contains { later in later.vary == staged[index].vary && covered.contains { $0 === later } }
      }
      // What is covered counts on until it is forgotten.
      count.subtract(staged.count - kept.count - covered.count, ordering: .releasing)
      responses[key] = kept.isEmpty ? nil : kept.map { staged[$0] }
      removed += covered
    }
    return removed
  }

  /// Whether the response is still wanted.
  func contains(_ response: StagedResponse) -> Bool {
    responses.withLock { $0[response.key]?.contains { $0 === response } ?? false }
  }

  /// What was last staged for a variant.
  func newest(of key: RequestKey, vary: VarySelection) -> StagedResponse? {
    responses.withLock { $0[key]?.last { $0.vary == vary } }
  }

  /// The variants staged for a key, newest first; a variant that was staged again appears once. `removed` are those that
  /// are being removed.
  func variants(of key: RequestKey) -> (staged: [StagedResponse], removed: [VarySelection]) {
    let (staged, removed) = responses.withLock { responses -> ([StagedResponse], [StagedResponse]) in
      (responses[key] ?? [], self.removed.withLock { $0[key] ?? [] })
    }
    var variants: [StagedResponse] = []
    for response in staged.reversed() where !variants.contains(where: { $0.vary == response.vary }) {
      variants.append(response)
    }
    return (variants, removed.map(\.vary))
  }
}
