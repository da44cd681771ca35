import Foundation
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Answers the challenges of origins as a session does that gets them itself: by its delegate, or else by what its
/// credential storage proposes.
///
/// The request is then sent once more with the credentials, so that it is known which responses came by them.
/// Foundation on Linux knows Basic authentication alone, and stops the process for other kinds; here their 401 is the
/// response.
final class ChallengeResponder: @unchecked Sendable {
  // Sendable: weak references are loaded atomically, and this one is never set again.
  private weak var session: URLSession?

  /// What one request has done about challenges.
  struct Login {
    private(set) var failureCount = 0
    fileprivate var last: (credential: URLCredential, space: URLProtectionSpace)?

    /// Whether the request was sent with credentials.
    var isUsed: Bool { last != nil }

    /// Keeps credentials that were accepted, as a session does.
    func keep(in storage: URLCredentialStorage?) {
      guard let last, let storage else { return }
      storage.set(last.credential, for: last.space)
    }

    fileprivate mutating func fail() { failureCount += 1 }
  }

  /// - Parameter session: Whose delegate is asked; nil asks the credential storage alone.
  init(session: URLSession?) {
    self.session = session
  }

  /// Whether there may be an answer to a challenge.
  func hasCredentials(_ storage: URLCredentialStorage?) -> Bool {
    session?.delegate is any URLSessionTaskDelegate || !(storage?.allCredentials.isEmpty ?? true)
  }

  /// The `Authorization` field with which to send the request once more; nil if the 401 is to be the response.
  ///
  /// - Throws: `CancellationError` if the delegate cancels, or the calling task is cancelled.
  func answer(_ challenge: Exchange.Challenge, _ login: inout Login) async throws -> String? {
    let proposed = challenge.challenge.proposedCredential.flatMap { $0 == login.last?.credential ? nil : $0 }
    let asked = URLAuthenticationChallenge(
      protectionSpace: challenge.challenge.protectionSpace, proposedCredential: proposed,
      previousFailureCount: login.failureCount, failureResponse: challenge.challenge.failureResponse,
      error: challenge.challenge.error, sender: Sender())
    login.fail()
    let credential: URLCredential?
    let reply = try await reply(to: Exchange.Challenge(challenge: asked, task: challenge.task))
    switch reply?.disposition ?? .performDefaultHandling {
    case .useCredential: credential = reply?.credential
    case .performDefaultHandling: credential = proposed
    case .cancelAuthenticationChallenge, .rejectProtectionSpace: throw CancellationError()
    @unknown default: credential = nil
    }
    guard let credential, asked.protectionSpace.authenticationMethod == NSURLAuthenticationMethodHTTPBasic else {
      return nil
    }
    login.last = (credential, asked.protectionSpace)
    let pair = "\(credential.user ?? ""):\(credential.password ?? "")"
    return "Basic " + Data(pair.utf8).base64EncodedString()
  }

  private struct Reply: @unchecked Sendable {
    // Sendable: a credential does not change.
    let disposition: URLSession.AuthChallengeDisposition
    let credential: URLCredential?
  }

  /// What the session's delegate says; nil if there is none to ask.
  private func reply(to challenge: Exchange.Challenge) async throws -> Reply? {
    guard let session, let delegate = session.delegate as? any URLSessionTaskDelegate else { return nil }
    let asked = DelegateCall(session: session, delegate: delegate)
    return try await DelegateAnswer<Reply>.wait { answer in
      asked.session.delegateQueue.addOperation {
        asked.delegate.urlSession(asked.session, task: challenge.task, didReceive: challenge.challenge) {
          answer.give(Reply(disposition: $0, credential: $1))
        }
      }
    }
  }

  private struct DelegateCall: @unchecked Sendable {
    // Sendable: the delegate is called on its session's queue alone.
    let session: URLSession
    let delegate: any URLSessionTaskDelegate
  }

  /// Takes no answer: they come by the completion handler.
  private final class Sender: NSObject, URLAuthenticationChallengeSender {
    func use(_ credential: URLCredential, for challenge: URLAuthenticationChallenge) {}
    func continueWithoutCredential(for challenge: URLAuthenticationChallenge) {}
    func cancel(_ challenge: URLAuthenticationChallenge) {}
    func performDefaultHandling(for challenge: URLAuthenticationChallenge) {}
    func rejectProtectionSpaceAndContinue(with challenge: URLAuthenticationChallenge) {}
  }
}

/// The answer that a delegate gives through a completion handler. Its first one counts, and whoever is cancelled does
/// not wait.
final class DelegateAnswer<Value: Sendable>: Sendable {
  private enum State {
    case open
    case waiting(CheckedContinuation<Value, any Error>)
    case over(Result<Value, any Error>?)
  }

  private let state = Mutex(State.open)

  /// Calls `ask` and waits for the answer.
  ///
  /// - Throws: `CancellationError` when the calling task is cancelled.
  static func wait(_ ask: (DelegateAnswer) -> Void) async throws -> Value {
    let answer = DelegateAnswer()
    return try await withTaskCancellationHandler {
      ask(answer)
      return try await withCheckedThrowingContinuation { continuation in
        let result = answer.state.withLock { state -> Result<Value, any Error>? in
          if case .over(let result) = state {
            state = .over(nil)
            return result
          }
          state = .waiting(continuation)
          return nil
        }
        if let result { continuation.resume(with: result) }
      }
    } onCancel: {
      answer.end(.failure(CancellationError()))
    }
  }

  /// Gives the answer; later ones count for nothing.
  func give(_ value: Value) {
    end(.success(value))
  }

  private func end(_ result: Result<Value, any Error>) {
    let waiting = state.withLock { state -> CheckedContinuation<Value, any Error>? in
      switch state {
      case .open: state = .over(result)
      case .waiting(let continuation):
        state = .over(nil)
        return continuation
      case .over: break
      }
      return nil
    }
    waiting?.resume(with: result)
  }
}
