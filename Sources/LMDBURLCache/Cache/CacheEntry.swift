import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching
import ResponseStore

/// A stored response in either tier.
struct CacheEntry: Sendable, StoredResponseMetadata {
  let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  let status: Int
  private let bytes: Data
  let freshness: FreshnessInfo
  let storedAt: Date
  private let source: Source

  private enum Source: Sendable {
    case memory(fields: HeaderFields, vary: VaryKey, attachment: [UInt8]?)
    case store(StoredResponse)
  }

  init(_ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil, storedAt: Date) {
    self.key = key
    status = response.status
    bytes = response.body
    freshness = response.freshness
    self.storedAt = storedAt
    source = .memory(fields: response.fields, vary: response.vary, attachment: attachment)
  }

  init(_ stored: StoredResponse, key: RequestKey) {
    self.key = key
    status = stored.status
    bytes = stored.storedBody == nil ? stored.body : Data()
    freshness = stored.freshness
    storedAt = stored.storedAt
    source = .store(stored)
  }

  /// The store's response from which this entry was created.
  ///
  /// Its freshness may differ from ``freshness``, which a soft purge can end.
  var stored: StoredResponse? {
    if case .store(let stored) = source { stored } else { nil }
  }

  /// The body. Traps if the lookup left it in the store.
  var body: Data {
    precondition(!bytes.isEmpty || storedBody == nil, "The body is still in the store")
    return bytes
  }

  /// The body in the store, if the lookup left it there.
  var storedBody: StoredBody? {
    if case .store(let stored) = source { stored.storedBody } else { nil }
  }

  var bodyByteCount: Int { bytes.isEmpty ? storedBody?.byteCount ?? 0 : bytes.count }

  var fields: HeaderFields {
    switch source {
    case .memory(let fields, _, _): fields
    case .store(let stored): stored.fields
    }
  }

  /// The fields in Foundation's form.
  var foundationFields: [String: String] {
    switch source {
    case .memory(let fields, _, _): return fields.foundation
    case .store(let stored):
      var joined = FoundationFields()
      stored.forEachField { joined.append(name: $0, value: $1) }
      return joined.fields
    }
  }

  /// The approximate size of the fields in bytes.
  var fieldsByteCount: Int {
    switch source {
    case .memory(let fields, _, _): fields.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count }
    case .store(let stored): stored.fieldsByteCount
    }
  }

  var vary: VaryKey {
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

  /// Returns this response with the fields and freshness of a 304 (RFC 9111, section 4.3.4).
  func updated(fields: HeaderFields, freshness: FreshnessInfo) -> CacheEntry {
    CacheEntry(
      CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary), for: key,
      attachment: attachment, storedAt: storedAt)
  }

  /// Returns this response with its freshness after a soft purge.
  func softPurged(at date: Date) -> CacheEntry { CacheEntry(self, freshness: freshness.softPurged(at: date)) }

  private init(_ other: CacheEntry, freshness: FreshnessInfo) {
    key = other.key
    status = other.status
    bytes = other.bytes
    self.freshness = freshness
    storedAt = other.storedAt
    source = other.source
  }

  /// The response in the form that the store accepts.
  var response: CacheableResponse {
    CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary)
  }

  /// The response's URL, if it differs from the key's.
  var attachedURL: URL? {
    guard let attachment else { return nil }
    return ResponseAttachment(bytes: attachment)?.url.flatMap { URL(string: $0) }
  }

  /// Creates the Foundation response.
  ///
  /// - Parameter asked: The URL of the request, if it is known.
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
    if attachment?.url == nil, let asked, asked.baseURL == nil {
      if key.isMade(of: asked.absoluteString) { return asked }
      // The user of a URL is not stored.
      if asked.hasUserInformation, key.isMade(of: asked.textWithoutUserInformation) { return asked }
    }
    // Keys come from valid URLs, so parsing does not fail. If it ever did, a placeholder URL is better than a trap.
    return URL(string: attachment?.url ?? key.urlString) ?? URL(fileURLWithPath: "/")
  }
}
