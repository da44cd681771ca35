import Foundation
import FoundationNetworking
import Synchronization

/// The Foundation objects of a request, which the caching client passes to the transport and the storage.
final class RequestContext: Sendable {
  /// The request with the fields that its session adds; for a redirect, the request of the hop.
  let request: URLRequest
  /// The data task of a session's request; nil for later hops of a redirect.
  ///
  /// With a task, a subclass's store method for tasks is called.
  let task: URLSessionDataTask?
  /// The response that the session's own lookup found before it created the protocol object; used once.
  private let prefetched: Mutex<CachedURLResponse?>

  init(request: URLRequest, task: URLSessionDataTask? = nil, prefetched: CachedURLResponse? = nil) {
    self.request = request
    self.task = task
    self.prefetched = Mutex(prefetched)
  }

  func takePrefetched() -> CachedURLResponse? {
    prefetched.withLock { $0.take() }
  }
}
