import CacheModel
import HTTPCaching
import ResponseStore

/// A response to store, with its cache key.
///
/// Tests and benchmarks refer to this file through symbolic links.
@dynamicMemberLookup
struct KeyedResponse: Sendable {
  var key: RequestKey
  var response: CacheableResponse
  var attachment: [UInt8]?

  subscript<Value>(dynamicMember member: WritableKeyPath<CacheableResponse, Value>) -> Value {
    get { response[keyPath: member] }
    set { response[keyPath: member] = newValue }
  }
}

extension ResponseStore {
  @discardableResult
  func store(_ keyed: KeyedResponse, askedAt token: RemovalToken? = nil, waitsForSpace: Bool = true) -> Bool {
    store(
      keyed.response, for: keyed.key, attachment: keyed.attachment, askedAt: token, waitsForSpace: waitsForSpace)
  }
}
