import Foundation
import HTTPCaching
import ResponseStore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What the cache keeps of a response, wherever it is kept.
struct CachedRecord: Sendable, StoredResponseView {
  let key: RequestKey
  /// 0 for a response that is not HTTP.
  let status: Int
  let body: Data
  let facts: FreshnessFacts
  let storedAt: Date
  private let source: Source

  private enum Source: Sendable {
    case memory(fields: HTTPFields, vary: VarySelection, attachment: [UInt8]?)
    case store(StoredResponse)
  }

  init(
    key: RequestKey, status: Int, fields: HTTPFields, body: Data, facts: FreshnessFacts, vary: VarySelection,
    attachment: [UInt8]?, storedAt: Date
  ) {
    self.key = key
    self.status = status
    self.body = body
    self.facts = facts
    self.storedAt = storedAt
    source = .memory(fields: fields, vary: vary, attachment: attachment)
  }

  init(_ stored: StoredResponse) {
    key = stored.key
    status = stored.status
    body = stored.body
    facts = stored.facts
    storedAt = stored.storedAt
    source = .store(stored)
  }

  var bodyByteCount: Int { body.count }

  var fields: HTTPFields {
    switch source {
    case .memory(let fields, _, _): fields
    case .store(let stored): stored.fields
    }
  }

  var vary: VarySelection {
    switch source {
    case .memory(_, let vary, _): vary
    case .store(let stored): stored.vary
    }
  }

  var attachment: [UInt8]? {
    switch source {
    case .memory(_, _, let attachment): attachment
    case .store(let stored): stored.attachment
    }
  }

  /// The same response with other fields and facts, after a 304.
  func updated(fields: HTTPFields, facts: FreshnessFacts) -> CachedRecord {
    CachedRecord(
      key: key, status: status, fields: fields, body: body, facts: facts, vary: vary, attachment: attachment,
      storedAt: storedAt)
  }

  /// As the store takes it.
  var newResponse: NewResponse {
    NewResponse(
      key: key, status: status, fields: fields, body: body, facts: facts, vary: vary, attachment: attachment)
  }

  /// The response's URL, if it was stored with another one than its key's.
  var attachedURL: URL? {
    guard let attachment else { return nil }
    return ResponseAttachment(bytes: attachment)?.url.flatMap { URL(string: $0) }
  }

  /// The Foundation response, built anew.
  func makeURLResponse() -> URLResponse {
    let attachment = ResponseAttachment(bytes: attachment)
    let text = attachment?.url ?? key.urlString
    // A key is made from a URL, so this cannot fail; should it ever, an empty answer is better than a trap.
    let url = URL(string: text) ?? URL(fileURLWithPath: "/")
    if status > 0, let response = HTTPURLResponse.make(url: url, head: ResponseHead(status: status, fields: fields)) {
      return response
    }
    return URLResponse(
      url: url, mimeType: attachment?.mimeType, expectedContentLength: attachment?.expectedContentLength ?? body.count,
      textEncodingName: attachment?.textEncodingName)
  }
}
