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

  init(_ stored: StoredResponse, key: RequestKey) {
    self.key = key
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

  /// The fields as Foundation wants them.
  var foundationFields: [String: String] {
    switch source {
    case .memory(let fields, _, _): return fields.foundation
    case .store(let stored):
      var joined = FoundationFields()
      stored.forEachField { joined.append(name: $0, value: $1) }
      return joined.fields
    }
  }

  /// What the fields take, roughly.
  var fieldsByteCount: Int {
    switch source {
    case .memory(let fields, _, _): fields.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count }
    case .store(let stored): stored.fieldsByteCount
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
  ///
  /// - Parameter asked: The URL that was asked for, if it is known.
  func makeURLResponse(asked: URL?) -> URLResponse {
    let attachment = ResponseAttachment(bytes: attachment)
    let url = responseURL(attachment, asked: asked)
    if status > 0, let response = HTTPURLResponse.make(url: url, status: status, fields: foundationFields) {
      return response
    }
    return URLResponse(
      url: url, mimeType: attachment?.mimeType, expectedContentLength: attachment?.expectedContentLength ?? body.count,
      textEncodingName: attachment?.textEncodingName)
  }

  private func responseURL(_ attachment: ResponseAttachment?, asked: URL?) -> URL {
    if attachment?.url == nil, let asked, asked.baseURL == nil, key.isMade(of: asked.absoluteString) { return asked }
    // A key is made from a URL, so this cannot fail; should it ever, an empty answer is better than a trap.
    return URL(string: attachment?.url ?? key.urlString) ?? URL(fileURLWithPath: "/")
  }
}
