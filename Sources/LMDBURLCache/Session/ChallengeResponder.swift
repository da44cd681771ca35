import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

/// Responds to Basic challenges like a session that receives them itself.
///
/// It asks the session's delegate first, then the credential storage. The request is resent with the credentials here,
/// so that the caching client knows which responses depend on them. Without credentials the 401 is the response.
///
/// The credentials are used for this load alone. They are not stored, because other sessions use the same storage.
struct ChallengeResponder: Sendable {
  private let session: @Sendable () -> URLSession?
  private let storage: URLCredentialStorage?
  private let task: DelegateTask

  /// - Parameters:
  ///   - session: Returns the session whose delegate is asked; nil asks only the credential storage.
  ///   - storage: The credential storage; nil for none.
  ///   - task: The task that the delegate gets.
  init(session: @escaping @Sendable () -> URLSession?, storage: URLCredentialStorage?, task: DelegateTask) {
    self.session = session
    self.storage = storage
    self.task = task
  }

  /// Whether there may be credentials for a challenge.
  var hasCredentials: Bool {
    task.delegate(of: session()) != nil || !(storage?.allCredentials.isEmpty ?? true)
  }

  /// Sends a request, and resends it with credentials as often as a challenge is answered.
  ///
  /// - Parameter carry: Sends the request once.
  /// - Throws: `CancellationError` if the delegate cancels a challenge or the calling task is cancelled.
  func send(
    _ request: OutgoingRequest, over carry: (OutgoingRequest) async throws -> IncomingResponse
  ) async throws -> IncomingResponse {
    var request = request
    var login = Login()
    while true {
      var response = try await carry(request)
      if response.head.status == 401, !request.hasBodyStream, hasCredentials,
        let field = try await answer(response.head, to: request, &login)
      {
        request.head.fields.set("Authorization", field)
        continue
      }
      response.usedUnseenCredentials = login.isUsed
      return response
    }
  }

  /// The state of one request's authentication.
  private struct Login {
    var failureCount = 0
    private var tried: [(credential: URLCredential, realm: String?)] = []

    /// Whether the request was sent with credentials.
    var isUsed: Bool { !tried.isEmpty }

    /// Whether the request was sent with these credentials for the space, which the origin has then refused.
    func hasTried(_ credential: URLCredential?, for space: URLProtectionSpace) -> Bool {
      tried.contains { $0.credential == credential && $0.realm == space.realm }
    }

    mutating func use(_ credential: URLCredential, for space: URLProtectionSpace) {
      tried.append((credential, space.realm))
    }
  }

  /// Returns the `Authorization` field for resending the request; nil if the 401 is the response.
  private func answer(_ head: ResponseHead, to request: OutgoingRequest, _ login: inout Login) async throws -> String? {
    let url = request.head.url
    guard let space = BasicChallenge(head.fields)?.space(of: url),
      let response = HTTPURLResponse.make(url: url, head: head, isContentDecoded: false)
    else { return nil }
    let stored = storage.flatMap { ProgramCredentials.shared.credential(for: space, in: $0) }
    let proposed = login.hasTried(stored, for: space) ? nil : stored
    let challenge = URLAuthenticationChallenge(
      protectionSpace: space, proposedCredential: proposed, previousFailureCount: login.failureCount,
      failureResponse: response, error: nil, sender: Sender())
    login.failureCount += 1
    let credential: URLCredential?
    let reply = try await reply(to: challenge, request.urlRequest)
    switch reply?.disposition ?? .performDefaultHandling {
    case .useCredential: credential = reply?.credential
    case .performDefaultHandling: credential = proposed
    case .cancelAuthenticationChallenge, .rejectProtectionSpace: throw CancellationError()
    @unknown default: credential = nil
    }
    guard let credential else { return nil }
    login.use(credential, for: space)
    let pair = "\(credential.user ?? ""):\(credential.password ?? "")"
    return "Basic " + Data(pair.utf8).base64EncodedString()
  }

  private typealias Reply = (disposition: URLSession.AuthChallengeDisposition, credential: URLCredential?)

  /// Returns the reply of the delegate; nil if there is no delegate.
  private func reply(to challenge: URLAuthenticationChallenge, _ request: URLRequest) async throws -> Reply? {
    guard let session = session(), let delegate = task.delegate(of: session) else { return nil }
    return try await task.use(for: request) { task in
      try await DelegateReply<Reply>.wait { reply in
        session.delegateQueue.addOperation {
          delegate.urlSession(session, task: task, didReceive: challenge) { reply.give(($0, $1)) }
        }
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

/// The task that delegate methods get: the one of a caching session, or one that never runs.
enum DelegateTask: Sendable {
  case running(URLSessionTask)
  /// A load without a task. A delegate method requires one, which is made by this session.
  case idle(@Sendable () -> URLSession)

  /// Returns the delegate that is asked: the task's, or the session's if the load has no task.
  func delegate(of session: URLSession?) -> (any URLSessionTaskDelegate)? {
    switch self {
    case .running(let task): task.delegate
    case .idle: session?.delegate as? any URLSessionTaskDelegate
    }
  }

  /// Calls `body` with the task.
  func use<R: Sendable>(for request: URLRequest, _ body: (URLSessionTask) async throws -> R) async rethrows -> R {
    switch self {
    case .running(let task): return try await body(task)
    case .idle(let session):
      let task = await withCheckedContinuation { continuation in
        SessionCalls.queue.async { continuation.resume(returning: session().dataTask(with: request)) }
      }
      // Cancel the task, because its session would otherwise retain it.
      defer { SessionCalls.queue.async { task.cancel() } }
      return try await body(task)
    }
  }
}

extension OutgoingRequest {
  /// Foundation's form of the request: the caller's request with the present URL, method and fields.
  var urlRequest: URLRequest {
    ((context as? RequestContext)?.request ?? URLRequest(url: head.url)).replacing(head)
  }

  /// Whether the content is a stream, which can be read once.
  var hasBodyStream: Bool {
    if case .inContext? = body { (context as? RequestContext)?.request.httpBodyStream != nil } else { false }
  }
}
