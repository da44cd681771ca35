import Glibc

/// The addresses and ports that identify a connection in libcurl.
struct ConnectionEnds: Hashable {
  let peer: String
  let peerPort: CInt
  let local: String
  let localPort: CInt
}

/// The sockets of a pool's connections, by their addresses and ports. Only the I/O thread uses it.
///
/// Before libcurl reuses a connection, it reports its addresses and ports, but not its socket.
struct KnownConnections {
  private var descriptors: [ConnectionEnds: CInt] = [:]
  private var ends: [CInt: ConnectionEnds] = [:]

  /// The number of open connections.
  var count: Int { ends.count }

  /// Registers a new connection.
  ///
  /// - Parameter sockets: The sockets created for it. All but one belong to addresses that failed.
  mutating func add(_ connection: ConnectionEnds, among sockets: [CInt]) {
    for descriptor in sockets where Self.localPort(of: descriptor) == connection.localPort {
      descriptors[connection] = descriptor
      ends[descriptor] = connection
    }
  }

  mutating func remove(_ descriptor: CInt) {
    guard let connection = ends.removeValue(forKey: descriptor) else { return }
    // Another socket may have the same addresses and ports now.
    if descriptors[connection] == descriptor { descriptors[connection] = nil }
  }

  /// Whether an idle connection has no unread bytes.
  ///
  /// Such bytes belong to no request, and would be taken for the response to the next one.
  func isSilent(_ connection: ConnectionEnds) -> Bool {
    guard let descriptor = descriptors[connection] else { return false }
    var state = pollfd(fd: descriptor, events: CShort(POLLIN), revents: 0)
    return poll(&state, 1, 0) == 0
  }

  private static func localPort(of descriptor: CInt) -> CInt? {
    var address = sockaddr_storage()
    var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
    let isKnown = withUnsafeMutableBytes(of: &address) { bytes in
      bytes.withMemoryRebound(to: sockaddr.self) { getsockname(descriptor, $0.baseAddress, &length) == 0 }
    }
    // The port is at the same offset in IPv4 and IPv6 addresses.
    guard isKnown, address.ss_family == AF_INET || address.ss_family == AF_INET6 else { return nil }
    return withUnsafeBytes(of: &address) { bytes in
      CInt(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
    }
  }
}
