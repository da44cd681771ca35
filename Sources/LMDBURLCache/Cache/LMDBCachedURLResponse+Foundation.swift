import Foundation
import FoundationNetworking
import HTTPCaching

/// The Foundation responses of a stored response.
extension LMDBCachedURLResponse {
  /// Returns the response to a request with an `Age` field (RFC 9111, section 4) and its provenance.
  ///
  /// The last result is reused while the URL and the provenance, with the age in whole seconds, are the same.
  ///
  /// - Parameter url: The request's URL, which is also the response's unless another one was stored with it.
  func response(with provenance: CacheProvenance, url: URL) -> URLResponse {
    guard status > 0 else { return response }
    return responseWithAge.withLock { last -> URLResponse in
      if let last, last.provenance.isSame(as: provenance), last.url == url { return last.response }
      var head = ResponseHead(status: status, fields: fields)
      head.fields.set("Age", String(provenance.age))
      guard
        let response = HTTPURLResponse.make(url: attachedURL ?? url, head: head, provenance: provenance)
      else { return makeURLResponse() }
      last = ResponseWithAge(provenance: provenance, url: url, response: response)
      return response
    }
  }

  /// The fields in Foundation's form.
  private var foundationFields: [String: String] {
    guard let stored else { return fields.foundation }
    var joined = FoundationFields()
    stored.forEachField { joined.append(name: $0, value: $1) }
    return joined.fields
  }

  /// The response's URL, if it differs from the key's.
  var attachedURL: URL? {
    guard let attachment else { return nil }
    return ResponseAttachment(bytes: attachment)?.url.flatMap { URL(string: $0) }
  }

  /// Creates the Foundation response.
  func makeURLResponse() -> URLResponse {
    let attachment = ResponseAttachment(bytes: attachment)
    let url = responseURL(attachment, asked: askedURL)
    if status > 0, let response = HTTPURLResponse.make(url: url, status: status, fields: foundationFields) {
      return response
    }
    return URLResponse(
      url: url, mimeType: attachment?.mimeType, expectedContentLength: attachment?.expectedContentLength ?? body.count,
      textEncodingName: attachment?.textEncodingName)
  }

  private func responseURL(_ attachment: ResponseAttachment?, asked: URL?) -> URL {
    if attachment?.url == nil, let asked, asked.baseURL == nil {
      if key.isMade(of: asked.absoluteString) { return asked }
      // The user of a URL is not stored.
      if asked.hasUserInformation, key.isMade(of: asked.textWithoutUserInformation) { return asked }
    }
    // Keys come from valid URLs, so parsing does not fail. If it ever did, a placeholder URL is better than a trap.
    return URL(string: attachment?.url ?? key.urlString) ?? URL(fileURLWithPath: "/")
  }
}
