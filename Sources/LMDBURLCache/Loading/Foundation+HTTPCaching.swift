import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

extension HeaderFields {
  /// Creates the fields of a Foundation message, in which Foundation has already joined lines of the same name.
  init(foundation fields: [String: String]?) {
    self.init()
    guard let fields else { return }
    reserveCapacity(fields.count)
    for (name, value) in fields { append(name: name, value: value) }
  }

  /// The fields in Foundation's form, with one line per name.
  var foundation: [String: String] {
    var joined = FoundationFields()
    for (name, value) in self { joined.append(name: name, value: value) }
    return joined.fields
  }
}

/// Header fields in Foundation's form: lines of the same name are joined, under the spelling of the first. A value that
/// is not UTF-8 is shown as ISO 8859-1.
struct FoundationFields {
  private(set) var fields = [String: String](minimumCapacity: 12)
  /// A bit for each hash of a name's length and first letter. Equal names have the same bit.
  private var shapes: UInt64 = 0
  /// The spelling of each name's first line, by the name in lower case. Replaces a linear search among many names.
  private var spellings: [String: String] = [:]
  /// The number of names from which on `spellings` contains all of them.
  private static let manyCount = 64

  mutating func append(name: String, value: String) {
    let value = FieldText.displayed(value)
    guard fields.count < Self.manyCount else { return appendAmongMany(name: name, value: value) }
    let shape: UInt64 = 1 << (UInt64(name.utf8.count &* 8 &+ Int((name.utf8.first ?? 0) & 0x1f)) & 63)
    if shapes & shape != 0, let first = fields.keys.first(where: { $0.equalsIgnoringCase(name) }) {
      fields[first, default: ""] += ", " + value
    } else {
      shapes |= shape
      fields[name] = value
    }
  }

  private mutating func appendAmongMany(name: String, value: String) {
    if spellings.isEmpty {
      for first in fields.keys { spellings[first.asciiLowercased()] = first }
    }
    let lowercased = name.asciiLowercased()
    if let first = spellings[lowercased] {
      fields[first, default: ""] += ", " + value
    } else {
      spellings[lowercased] = name
      fields[name] = value
    }
  }
}

extension RequestHead {
  /// This request with the fields that Foundation sends by default.
  var withFoundationDefaults: RequestHead {
    var head = self
    head.defaultUserAgent = Self.foundationUserAgent
    // Foundation adds this field in every locale. All transports must send what the Vary key contains.
    head.defaultLanguage = "en"
    head.defaultAcceptEncoding = "gzip, deflate"
    return head
  }

  /// The `User-Agent` of requests that have none, with a placeholder for the version that Foundation sends.
  private static let foundationUserAgent = ProcessInfo.processInfo.processName + " (unknown version)"
}

extension URLRequest {
  /// The request for the caching modules; nil without a URL.
  var head: RequestHead? {
    guard let url else { return nil }
    return RequestHead(
      method: httpMethod ?? "GET", url: url, fields: HeaderFields(foundation: allHTTPHeaderFields)
    ).withFoundationDefaults
  }

  /// Whether the request has content.
  var hasBody: Bool { httpBody != nil || httpBodyStream != nil }

  /// The content for the caching client; nil without one. Only the content of a query must be in memory.
  var contentSource: RequestBodySource? {
    guard hasBody else { return nil }
    guard let httpBody, httpMethod == "QUERY" || httpMethod == "POST" else { return .inContext }
    return .bytes(httpBody)
  }

  /// Returns this request with the URL, method and fields of `head`.
  func replacing(_ head: RequestHead) -> URLRequest {
    var request = self
    request.url = head.url
    request.httpMethod = head.method
    for name in (request.allHTTPHeaderFields ?? [:]).keys where !head.fields.contains(name) {
      request.setValue(nil, forHTTPHeaderField: name)
    }
    for (name, value) in head.fields.foundation { request.setValue(value, forHTTPHeaderField: name) }
    return request
  }
}

extension HTTPURLResponse {
  /// The response head for the caching modules.
  var head: ResponseHead {
    var fields = HeaderFields()
    fields.reserveCapacity(allHeaderFields.count)
    for (name, value) in allHeaderFields {
      guard let name = name.base as? String, let value = value as? String else { continue }
      fields.append(name: name, value: value)
    }
    return ResponseHead(status: statusCode, fields: fields)
  }

  /// Creates a response from a head; nil if Foundation refuses.
  ///
  /// It never refuses the URL and status of a stored response.
  ///
  /// - Parameters:
  ///   - provenance: The provenance of a response to a request through the cache; nil for others.
  ///   - isContentDecoded: Whether the transport has decoded the content.
  static func make(
    url: URL, head: ResponseHead, provenance: CacheProvenance? = nil, isContentDecoded: Bool
  ) -> HTTPURLResponse? {
    make(
      url: url, status: head.status, fields: head.fields.foundation, provenance: provenance,
      isContentDecoded: isContentDecoded)
  }

  static func make(
    url: URL, status: Int, fields: [String: String], provenance: CacheProvenance? = nil, isContentDecoded: Bool
  ) -> HTTPURLResponse? {
    guard provenance != nil || isContentDecoded else {
      return HTTPURLResponse(url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: fields)
    }
    return DeliveredResponse(
      url: url, status: status, fields: fields, provenance: provenance, isContentDecoded: isContentDecoded)
  }
}

extension RequestPolicy {
  /// Converts a policy by name, because Foundation's raw values on Linux differ from those on Apple's systems.
  package init(_ policy: URLRequest.CachePolicy) {
    self =
      switch policy {
      case .useProtocolCachePolicy: .useProtocolCachePolicy
      case .reloadIgnoringLocalCacheData: .reloadIgnoringLocalCacheData
      case .reloadIgnoringLocalAndRemoteCacheData: .reloadIgnoringLocalAndRemoteCacheData
      case .returnCacheDataElseLoad: .returnCacheDataElseLoad
      case .returnCacheDataDontLoad: .returnCacheDataDontLoad
      case .reloadRevalidatingCacheData: .reloadRevalidatingCacheData
      @unknown default: .useProtocolCachePolicy
      }
  }
}

extension URL {
  /// Whether a `Host` field names another host than the URL.
  func isOtherHost(thanIn fields: [String: String]) -> Bool {
    for (name, value) in fields where name.equalsIgnoringCase("Host") {
      if RequestHead(url: self, fields: [name: value]).namesOtherHost { return true }
    }
    return false
  }
}
