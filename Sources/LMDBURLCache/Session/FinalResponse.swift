import Foundation
import FoundationNetworking
import Glibc
import Synchronization

/// A response that ends its task, also if it is a 401.
///
/// This library has responded to the challenges of the load. Foundation would respond to a 401 again: it would ask the
/// delegate a second time, and send the request past this library. Its search for a challenge needs the URL of the
/// response, which is therefore hidden on its thread while Foundation ends the task. If a later Foundation searches in
/// another way, a delegate is asked too often. A test would then fail.
final class FinalResponse: DeliveredResponse, @unchecked Sendable {
  // Sendable like its superclass: the only variable is atomic.
  /// The thread on which Foundation ends the task, and to which the URL is hidden; 0 for none.
  private let endingThread = Atomic<pthread_t>(0)

  override var url: URL? { endingThread.load(ordering: .relaxed) == pthread_self() ? nil : super.url }

  /// Returns the response in this form if Foundation would respond to it; otherwise the response itself.
  static func make(_ response: URLResponse) -> URLResponse {
    guard let response = response as? HTTPURLResponse, response.statusCode == 401, let url = response.url else {
      return response
    }
    var fields: [String: String] = [:]
    for case (let name as String, let value as String) in response.allHeaderFields { fields[name] = value }
    let delivered = response as? DeliveredResponse
    return FinalResponse(
      url: url, status: 401, fields: fields, provenance: delivered?.provenance,
      isContentDecoded: delivered?.isContentDecoded ?? false) ?? response
  }

  fileprivate func hideURL(while body: () -> Void) {
    endingThread.store(pthread_self(), ordering: .relaxed)
    body()
    endingThread.store(0, ordering: .relaxed)
  }
}

extension URLResponse {
  /// Calls `body`, in which Foundation ends the task of this response, so that Foundation finds no challenge in it.
  func whileEnding(_ body: () -> Void) {
    guard let final = self as? FinalResponse else { return body() }
    final.hideURL(while: body)
  }
}
