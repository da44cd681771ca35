import CachingClient
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

extension HTTPFields {
  /// The fields of a Foundation message. Foundation has joined several lines of one name already.
  init(foundation fields: [String: String]?) {
    self.init()
    guard let fields else { return }
    reserveCapacity(fields.count)
    for (name, value) in fields { append(name: name, value: value) }
  }

  /// As Foundation wants them: one line for each name.
  var foundation: [String: String] {
    var joined = FoundationFields()
    for (name, value) in self { joined.append(name: name, value: value) }
    return joined.fields
  }
}

/// Header fields as Foundation wants them: lines of one name are joined, under the spelling of the first.
struct FoundationFields {
  private(set) var fields = [String: String](minimumCapacity: 12)
  /// A bit for each length and first letter that names had: only names that share it can be the same.
  private var shapes: UInt64 = 0
  /// The spelling of each name's first line, by the name in lower case. Among many names a search would take too long.
  private var spellings: [String: String] = [:]
  /// With as many names as this, `spellings` holds all of them.
  private static let manyCount = 64

  mutating func append(name: String, value: String) {
    guard fields.count < Self.manyCount else { return appendAmongMany(name: name, value: value) }
    let shape: UInt64 = 1 << (UInt64(name.utf8.count &* 8 &+ Int((name.utf8.first ?? 0) & 0x1f)) & 63)
    if shapes & shape != 0, let first = fields.keys.first(where: { $0.isSameFieldName(as: name) }) {
      fields[first, default: ""] += ", " + value
    } else {
      shapes |= shape
      fields[name] = value
    }
  }

  private mutating func appendAmongMany(name: String, value: String) {
    if spellings.isEmpty {
      for first in fields.keys { spellings[first.lowercasedFieldName] = first }
    }
    let lowercased = name.lowercasedFieldName
    if let first = spellings[lowercased] {
      fields[first, default: ""] += ", " + value
    } else {
      spellings[lowercased] = name
      fields[name] = value
    }
  }
}

extension String {
  /// Equal for names of one field.
  fileprivate var lowercasedFieldName: String {
    String(decoding: utf8.map { $0 &- 0x41 < 26 ? $0 | 0x20 : $0 }, as: UTF8.self)
  }

  /// Whether both name one field: ASCII letters count without regard to case (RFC 9110, 5.1). Comparing them through
  /// Foundation takes longer than all the rest of building a response.
  fileprivate func isSameFieldName(as other: String) -> Bool {
    utf8.count == other.utf8.count
      && zip(utf8, other.utf8).allSatisfy { left, right in
        left == right || (left ^ right == 0x20 && (left | 0x20) &- 0x61 < 26)
      }
  }
}

extension URLRequest {
  /// The request as the caching modules see it; nil without a URL.
  var head: RequestHead? {
    guard let url else { return nil }
    var head = RequestHead(method: httpMethod ?? "GET", url: url, fields: HTTPFields(foundation: allHTTPHeaderFields))
    head.defaultUserAgent = Self.defaultUserAgent
    return head
  }

  /// Foundation sends the name of the process where a request has no User-Agent, and its own version, which is left out here.
  private static let defaultUserAgent = ProcessInfo.processInfo.processName + " (unknown version)"

  /// This request with another URL, method and fields.
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
  /// The response's head as the caching modules see it.
  var head: ResponseHead {
    var fields = HTTPFields()
    fields.reserveCapacity(allHeaderFields.count)
    for (name, value) in allHeaderFields {
      guard let name = name.base as? String, let value = value as? String else { continue }
      fields.append(name: name, value: value)
    }
    return ResponseHead(status: statusCode, fields: fields)
  }

  /// A response made of a head. Nil where Foundation refuses, which it does for no URL and status that we store.
  static func make(url: URL, head: ResponseHead) -> HTTPURLResponse? {
    make(url: url, status: head.status, fields: head.fields.foundation)
  }

  static func make(url: URL, status: Int, fields: [String: String]) -> HTTPURLResponse? {
    HTTPURLResponse(url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: fields)
  }
}

extension RequestPolicy {
  /// The policy by its name: Foundation's raw values on Linux are not those on Apple's systems.
  init(_ policy: URLRequest.CachePolicy) {
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
  /// Whether a `Host` among header fields names another host than the URL.
  func isOtherHost(thanIn fields: [String: String]) -> Bool {
    for (name, value) in fields where name.isSameFieldName(as: "Host") {
      if RequestHead(url: self, fields: [name: value]).namesOtherHost { return true }
    }
    return false
  }
}
