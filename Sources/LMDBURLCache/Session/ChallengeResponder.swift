import Foundation
import FoundationNetworking
import Synchronization

/// Responds to authentication challenges like a session that receives them itself.
///
/// It asks the session's delegate first, then the credential storage. The transport resends the request with the
/// credentials itself, so that it knows which responses depend on them. Foundation on Linux supports only Basic
/// authentication and stops the process for other kinds. For those, this class returns the 401 as the response.
final class ChallengeResponder: @unchecked Sendable {
  // Sendable: weak references are loaded atomically, and this one is never set again.
  private weak var session: URLSession?

  /// The state of one request's authentication.
  struct Login {
    private(set) var failureCount = 0
    fileprivate var last: (credential: URLCredential, space: URLProtectionSpace)?

    /// Whether the request was sent with credentials.
    var isUsed: Bool { last != nil }

    /// Stores credentials that were accepted, as a session does.
    func keep(in storage: URLCredentialStorage?) {
      guard let last, let storage else { return }
      storage.set(last.credential, for: last.space)
    }

    fileprivate mutating func fail() { failureCount += 1 }
  }

  /// - Parameter session: The session whose delegate is asked; nil asks only the credential storage.
  init(session: URLSession?) {
    self.session = session
  }

  /// Whether there may be credentials for a challenge.
  func hasCredentials(_ storage: URLCredentialStorage?) -> Bool {
    session?.delegate is any URLSessionTaskDelegate || !(storage?.allCredentials.isEmpty ?? true)
  }

  /// Returns the `Authorization` field for resending the request; nil if the 401 is the response.
  ///
  /// - Throws: `CancellationError` if the delegate cancels or the calling task is cancelled.
  func answer(_ challenge: SessionExchange.Challenge, _ login: inout Login) async throws -> String? {
    let proposed = challenge.challenge.proposedCredential.flatMap { $0 == login.last?.credential ? nil : $0 }
    let asked = URLAuthenticationChallenge(
      protectionSpace: challenge.challenge.protectionSpace, proposedCredential: proposed,
      previousFailureCount: login.failureCount, failureResponse: challenge.challenge.failureResponse,
      error: challenge.challenge.error, sender: Sender())
    login.fail()
    let credential: URLCredential?
    let reply = try await reply(to: SessionExchange.Challenge(challenge: asked, task: challenge.task))
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

  private typealias Reply = (disposition: URLSession.AuthChallengeDisposition, credential: URLCredential?)

  /// Returns the reply of the session's delegate; nil if there is no delegate.
  private func reply(to challenge: SessionExchange.Challenge) async throws -> Reply? {
    guard let session, let delegate = session.delegate as? any URLSessionTaskDelegate else { return nil }
    return try await DelegateReply<Reply>.wait { reply in
      session.delegateQueue.addOperation {
        delegate.urlSession(session, task: challenge.task, didReceive: challenge.challenge) { reply.give(($0, $1)) }
      }
    }
  }

  /// Ignores replies through the challenge's sender: delegates reply through the completion handler.
  private final class Sender: NSObject, URLAuthenticationChallengeSender {
    func use(_ credential: URLCredential, for challenge: URLAuthenticationChallenge) {}
    func continueWithoutCredential(for challenge: URLAuthenticationChallenge) {}
    func cancel(_ challenge: URLAuthenticationChallenge) {}
    func performDefaultHandling(for challenge: URLAuthenticationChallenge) {}
    func rejectProtectionSpaceAndContinue(with challenge: URLAuthenticationChallenge) {}
  }
}

/// The reply that a delegate gives through a completion handler.
///
/// The first reply counts. A cancelled caller does not wait for it.
final class DelegateReply<Value: Sendable>: Sendable {
  private enum State {
    case open
    case waiting(CheckedContinuation<Value, any Error>)
    case over(Result<Value, any Error>?)
  }

  private let state = Mutex(State.open)

  /// Calls `ask` and waits for the reply.
  ///
  /// - Throws: `CancellationError` when the calling task is cancelled.
  static func wait(_ ask: (DelegateReply) -> Void) async throws -> Value {
    let reply = DelegateReply()
    return try await withTaskCancellationHandler {
      ask(reply)
      return try await withCheckedThrowingContinuation { continuation in
        let result = reply.state.withLock { state -> Result<Value, any Error>? in
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
      reply.end(.failure(CancellationError()))
    }
  }

  /// Gives the reply; later replies are ignored.
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
