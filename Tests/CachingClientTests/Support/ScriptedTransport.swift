import CachingClient
import FoundationEssentials
import HTTPCaching
import Synchronization

/// A transport that gets its responses from a closure and records the requests.
final class ScriptedTransport: Transport {
  typealias Script = @Sendable (_ request: OutgoingRequest, _ number: Int) async throws -> IncomingResponse

  private let script: Script
  private let sent = Mutex<[OutgoingRequest]>([])

  /// - Parameter script: receives the request and its number, counted from 1.
  init(_ script: @escaping Script) {
    self.script = script
  }

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let number = sent.withLock { sent in
      sent.append(request)
      return sent.count
    }
    return try await script(request, number)
  }

  var requests: [OutgoingRequest] { sent.withLock { $0 } }
  var count: Int { sent.withLock { $0.count } }
}

/// The error of a transport that gets no response.
struct Unreachable: Error, Hashable {
  var number = 0
}

/// A gate that tasks pass once it is open. Waiting can be cancelled, like a transfer.
final class Gate: Sendable {
  private struct State {
    var isOpen = false
    var lastNumber = 0
    var waiting: [Int: CheckedContinuation<Void, any Error>] = [:]
  }

  private let state = Mutex(State())

  func open() {
    let waiting = state.withLock { state in
      state.isOpen = true
      defer { state.waiting = [:] }
      return state.waiting
    }
    for continuation in waiting.values { continuation.resume() }
  }

  func pass() async throws {
    let number = state.withLock { state in
      state.lastNumber += 1
      return state.lastNumber
    }
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        let isOpen = state.withLock { state in
          if !state.isOpen { state.waiting[number] = continuation }
          return state.isOpen
        }
        if isOpen { continuation.resume() }
        if Task.isCancelled { leave(number) }
      }
    } onCancel: {
      leave(number)
    }
  }

  private func leave(_ number: Int) {
    state.withLock { $0.waiting.removeValue(forKey: number) }?.resume(throwing: CancellationError())
  }
}

/// Waits until other tasks make the condition true.
///
/// There is no timeout; the test's time limit applies, which cancels the test.
func until(_ condition: () -> Bool) async {
  while !condition(), !Task.isCancelled {
    // To spin would take the processor from the other test processes. The loop ends after a cancelled sleep.
    try? await Task.sleep(for: .milliseconds(1))
  }
}

extension ManualClock {
  /// The value of a `Date` field with the time `now`.
  var field: String { HTTPDate.format(now) }
}
