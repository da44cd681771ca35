import CachingStorage
import Foundation
import HTTPCaching

func makeKey(_ index: Int, byteCount: Int) -> RequestKey {
  guard let key = RequestKey(urlString: "http://assets.example.com/images/\(byteCount)/\(index)/photo.webp") else {
    fatalError("the URL has no key")
  }
  return key
}

func makeResponse(byteCount: Int) -> CacheableResponse {
  let fields = HeaderFields((0..<10).map { ("X-Field-\($0)", "the value of field \($0)") })
  let freshness = FreshnessInfo(responseTime: Date(), initialAge: 0, lifetime: 86400, date: Date())
  return CacheableResponse(
    status: 200, fields: fields, body: Data(repeating: 7, count: byteCount), freshness: freshness,
    vary: VaryKey(fields: []))
}

func storeCalls(_ folder: String) throws -> [HotCall] {
  var options = ResponseStore.Options(capacityByteCount: 64 << 20)
  options.runsInBackground = false
  let store = try ResponseStore.open(directory: folder, options: options)
  let sizes = [1 << 10, 16 << 10, 256 << 10]
  for size in sizes {
    for index in 0..<16 { store.store(makeResponse(byteCount: size), for: makeKey(index, byteCount: size)) }
  }
  try store.flush()
  var calls: [HotCall] = []
  for size in sizes {
    let keys = (0..<16).map { makeKey($0, byteCount: size) }
    calls.append(
      HotCall(name: "lookup \(size >> 10) KB") { number in
        if store.lookup(keys[number & 15])?.withBodyBytes({ $0.byteCount }) != size { fatalError("missed") }
      })
  }
  let keys = (0..<16).map { makeKey($0, byteCount: 1 << 10) }
  calls.append(
    HotCall(name: "lookup 1 KB, body as Data") { number in
      if store.lookup(keys[number & 15])?.body.count != 1 << 10 { fatalError("missed") }
    })
  let borrowed = makeKey(1, byteCount: 1 << 10)
  calls.append(
    HotCall(name: "borrowed 1 KB") { _ in
      if store.withResponse(borrowed, { $0.bodyByteCount }) != 1 << 10 { fatalError("missed") }
    })
  guard let absent = RequestKey(urlString: "http://assets.example.com/none") else { fatalError("the URL has no key") }
  calls.append(HotCall(name: "lookup, absent") { _ in if store.lookup(absent) != nil { fatalError("found") } })
  calls.append(
    HotCall(name: "request key") { _ in
      if RequestKey(urlString: "http://assets.example.com/images/0000000001/photo.webp") == nil { fatalError("no key") }
    })
  // New entries, committed 256 at a time.
  var stored = 16
  calls.append(
    HotCall(name: "store 1 KB, with its commit") { _ in
      store.store(makeResponse(byteCount: 1 << 10), for: makeKey(stored, byteCount: 1 << 10))
      stored += 1
      if stored & 255 == 0 { while store.writePending() {} }
    })
  // After a 304: the body is neither copied nor hashed. Committed 16 at a time.
  let validated = (0..<16).compactMap { store.lookup(makeKey($0, byteCount: 256 << 10)) }
  guard validated.count == 16 else { fatalError("missed") }
  let (freshFields, freshness) = (validated[0].fields, validated[0].freshness)
  calls.append(
    HotCall(name: "update 256 KB, with its commit") { number in
      guard store.update(validated[number & 15], fields: freshFields, freshness: freshness) else {
        fatalError("not updated")
      }
      if number & 15 == 15 { while store.writePending() {} }
    })
  return calls
}
