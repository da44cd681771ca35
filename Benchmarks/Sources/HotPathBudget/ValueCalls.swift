import CachingStorage
import Foundation
import HTTPCaching
import Synchronization

/// Hits without Foundation's types, from the URL to the response.
func valueCalls(_ folder: String) throws -> [HotCall] {
  let cache = try ResponseCache(directory: folder, memoryCapacity: 64 << 20, diskCapacity: 64 << 20)
  let client = CachingClient(cache)
  let fields: HeaderFields = [
    "Content-Type": "image/webp", "Content-Length": "1024", "Date": HTTPDate.format(Date()),
    "Cache-Control": "public, max-age=2000000000", "ETag": "\"5f3e-1\"",
    "Last-Modified": "Mon, 02 Nov 2026 08:30:00 GMT", "Server": "nginx/1.22.1", "Accept-Ranges": "bytes",
    "X-Request-Id": "0b8f7c1e-1", "Strict-Transport-Security": "max-age=63072000",
  ]
  let transport = ReadyTransport(
    response: IncomingResponse(
      head: ResponseHead(status: 200, fields: fields), body: ResponseBodyStream(Data(repeating: 7, count: 1 << 10))))
  guard let url = URL(string: "http://assets.example.com/images/0000000001/photo.webp") else { fatalError("no URL") }
  @Sendable func load(fields isRead: Bool) async throws {
    let response = try await client.respond(to: CachingClientRequest(head: RequestHead(url: url)), over: transport)
    if isRead, response.deliveredHead.fields.count < 10 { fatalError("no fields") }
    loadedByteCount.store(response.body.bytes?.count ?? 0, ordering: .relaxed)
  }
  func call(_ name: String, fields isRead: Bool) -> HotCall {
    HotCall(name: name) { _ in
      let task = Task.immediate { try await load(fields: isRead) }
      if loadedByteCount.exchange(0, ordering: .relaxed) != 1 << 10 { fatalError("missed") }
      withExtendedLifetime(task) {}
    }
  }
  return [
    call("respond(to:over:), memory", fields: false), call("respond(to:over:), memory, with fields", fields: true),
  ]
}
