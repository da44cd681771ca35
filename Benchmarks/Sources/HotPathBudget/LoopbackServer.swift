import Foundation
import LMDBURLCache

/// A server on the loopback interface that sends the same response to each request, on a thread of its own.
func startServer(_ response: String) -> UInt16 {
  let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
  var address = sockaddr_in()
  address.sin_family = sa_family_t(AF_INET)
  address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
  var length = socklen_t(MemoryLayout<sockaddr_in>.size)
  let port = withUnsafeMutablePointer(to: &address) { pointer -> UInt16? in
    pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
      guard bind(listener, pointer, length) == 0, listen(listener, 8) == 0,
        getsockname(listener, pointer, &length) == 0
      else { return false }
      return true
    } ? UInt16(bigEndian: pointer.pointee.sin_port) : nil
  }
  guard let port else { fatalError("the server cannot listen") }
  let (bytes, closes) = (Array(response.utf8), response.contains("Connection: close"))
  Thread {
    var request = [UInt8](repeating: 0, count: 1 << 16)
    while true {
      let connection = accept(listener, nil, nil)
      // Until the client closes its only connection.
      while recv(connection, &request, request.count, 0) > 0 {
        _ = send(connection, bytes, bytes.count, 0)
        if closes { break }
      }
      close(connection)
    }
  }.start()
  return port
}

/// Loads a request over the network.
func loadOnce(_ request: URLRequest, through cache: LMDBURLCache) throws {
  let isLoaded = DispatchSemaphore(value: 0)
  Task {
    _ = try await cache.data(for: request)
    isLoaded.signal()
  }
  isLoaded.wait()
}
