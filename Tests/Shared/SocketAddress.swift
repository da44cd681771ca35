import Glibc
import Testing

/// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  private var storage = sockaddr_storage()
  private var length: socklen_t

  init(_ host: String, port: UInt16) throws {
    var isValid = false
    if host.contains(":") {
      var address = sockaddr_in6()
      address.sin6_family = sa_family_t(AF_INET6)
      address.sin6_port = port.bigEndian
      isValid = inet_pton(AF_INET6, host, &address.sin6_addr) == 1
      length = socklen_t(MemoryLayout<sockaddr_in6>.size)
      withUnsafeMutableBytes(of: &storage) { $0.storeBytes(of: address, as: sockaddr_in6.self) }
    } else {
      var address = sockaddr_in()
      address.sin_family = sa_family_t(AF_INET)
      address.sin_port = port.bigEndian
      isValid = inet_pton(AF_INET, host, &address.sin_addr) == 1
      length = socklen_t(MemoryLayout<sockaddr_in>.size)
      withUnsafeMutableBytes(of: &storage) { $0.storeBytes(of: address, as: sockaddr_in.self) }
    }
    try #require(isValid, "\(host) is no address")
  }

  /// The port, which is at the same offset in IPv4 and IPv6 addresses.
  var port: UInt16 {
    withUnsafeBytes(of: storage) { UInt16(bigEndian: $0.loadUnaligned(fromByteOffset: 2, as: UInt16.self)) }
  }

  func makeSocket(isBlocking: Bool = true) -> CInt {
    let kind = SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | (isBlocking ? 0 : SOCK_NONBLOCK.rawValue)
    return socket(CInt(storage.ss_family), CInt(kind), 0)
  }

  @discardableResult
  mutating func withPointer<Result>(
    _ body: (UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Result
  ) -> Result {
    withUnsafeMutablePointer(to: &storage) { storage in
      storage.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, &length) }
    }
  }

  /// Whether this machine has the address.
  static func isAvailable(_ host: String) -> Bool {
    guard var address = try? SocketAddress(host, port: 0) else { return false }
    let probe = address.makeSocket()
    guard probe >= 0 else { return false }
    defer { close(probe) }
    return address.withPointer { bind(probe, $0, $1.pointee) == 0 }
  }
}
