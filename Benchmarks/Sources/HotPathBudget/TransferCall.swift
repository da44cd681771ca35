import CachingStorage
import CurlTransport
import Foundation
import Synchronization

/// A response of 11 KB over libcurl, from a server in this process. Counts the caller, the I/O thread and the server.
///
/// The allocations are those of the caller until it waits.
func transferCall() throws -> HotCall {
  let port = startServer(
    "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 20 Nov 2026 10:00:00 GMT\r\nContent-Type: image/webp\r\n"
      + "Content-Length: \(usualByteCount)\r\nLast-Modified: Mon, 02 Nov 2026 08:30:00 GMT\r\n"
      + "Connection: keep-alive\r\nETag: \"5f3e-2c00\"\r\nCache-Control: max-age=3600\r\n"
      + "Vary: Accept-Encoding\r\nAccept-Ranges: bytes\r\n\r\n"
      + String(repeating: "x", count: usualByteCount))
  guard let url = URL(string: "http://127.0.0.1:\(port)/images/0000000001/photo.webp") else {
    throw URLError(.badURL)
  }
  let (transport, request) = (CurlTransport(), OutgoingRequest(head: RequestHead(url: url)))
  let isReceived = DispatchSemaphore(value: 0)
  return HotCall(name: "transfer of 11 KB over libcurl") { _ in
    Task.immediate {
      let response = try await transport.send(request)
      loadedByteCount.store(response.body.bytes?.count ?? 0, ordering: .relaxed)
      isReceived.signal()
    }
    isReceived.wait()
    if loadedByteCount.exchange(0, ordering: .relaxed) != usualByteCount { fatalError("not received") }
  }
}
