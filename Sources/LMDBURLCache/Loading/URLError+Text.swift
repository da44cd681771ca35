import Foundation
import FoundationNetworking

extension URLError {
  /// Creates an error with a text that says what failed, why, and what to do.
  init(_ code: Code, _ text: String) {
    self.init(code, userInfo: [NSLocalizedDescriptionKey: text])
  }

  static var requestWithoutURL: URLError {
    URLError(
      .badURL, "The request was not sent, because it has no URL. Set an absolute URL, such as https://example.com/.")
  }

  /// The error for a request that may not be sent and that no stored response can serve.
  static var nothingStored: URLError {
    URLError(
      .resourceUnavailable,
      "No stored response can serve the request, and its cache policy, returnCacheDataDontLoad, forbids sending it. Use "
        + "returnCacheDataElseLoad or useProtocolCachePolicy to load it.")
  }

  /// The error for a content stream that was read and cannot be sent a second time.
  static var exhaustedBodyStream: URLError {
    URLError(
      .requestBodyStreamExhausted,
      "The request was not sent to the target of a redirect, because its content stream has been read. Reply to "
        + "urlSession(_:task:needNewBodyStream:) with another stream, or set httpBody.")
  }
}
