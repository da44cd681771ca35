import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Passes on what a built-in protocol says, and looks at the response when the load is over.
final class InvalidatingClient: NSObject, URLProtocolClient, @unchecked Sendable {
  // Sendable: both are set once; the client is called where the built-in protocol calls this.
  private let client: any URLProtocolClient
  private let afterwards: @Sendable (ResponseHead) -> Void

  init(_ client: any URLProtocolClient, afterwards: @escaping @Sendable (ResponseHead) -> Void) {
    self.client = client
    self.afterwards = afterwards
  }

  /// Tells of the answer, as far as it has come. Before the caller is told: whoever asks next must not get what the request
  /// has changed.
  func look(at task: URLSessionTask?) {
    guard let task, let response = task.response as? HTTPURLResponse else { return }
    guard let asked = task.originalRequest?.url, let answered = task.currentRequest?.url, asked != answered else {
      return afterwards(response.head)
    }
    // A redirect was followed: that was the answer to the request, and it is no error whatever came of it.
    afterwards(ResponseHead(status: 303, fields: HTTPFields()))
  }

  func urlProtocolDidFinishLoading(_ protocol: URLProtocol) {
    look(at: `protocol`.task)
    client.urlProtocolDidFinishLoading(`protocol`)
  }

  func urlProtocol(_ protocol: URLProtocol, didFailWithError error: any Error) {
    // The head may have come, and then the origin has done what it was asked for.
    look(at: `protocol`.task)
    client.urlProtocol(`protocol`, didFailWithError: error)
  }

  func urlProtocol(
    _ protocol: URLProtocol, didReceive response: URLResponse, cacheStoragePolicy policy: URLCache.StoragePolicy
  ) {
    client.urlProtocol(`protocol`, didReceive: response, cacheStoragePolicy: policy)
  }

  func urlProtocol(_ protocol: URLProtocol, didLoad data: Data) {
    client.urlProtocol(`protocol`, didLoad: data)
  }

  func urlProtocol(_ protocol: URLProtocol, wasRedirectedTo request: URLRequest, redirectResponse: URLResponse) {
    client.urlProtocol(`protocol`, wasRedirectedTo: request, redirectResponse: redirectResponse)
  }

  func urlProtocol(_ protocol: URLProtocol, cachedResponseIsValid cachedResponse: CachedURLResponse) {
    client.urlProtocol(`protocol`, cachedResponseIsValid: cachedResponse)
  }

  func urlProtocol(_ protocol: URLProtocol, didReceive challenge: URLAuthenticationChallenge) {
    client.urlProtocol(`protocol`, didReceive: challenge)
  }

  func urlProtocol(_ protocol: URLProtocol, didCancel challenge: URLAuthenticationChallenge) {
    client.urlProtocol(`protocol`, didCancel: challenge)
  }
}
