import CurlTransport
import Foundation
import FoundationNetworking
import Synchronization

/// The transports of the sessions whose loads use a cache.
///
/// The cache owns them, so that their thread and their connections end with it. A session retains its cache, but
/// nothing tells when a session has ended: its context stays until another session appears.
final class SessionTransports: Sendable {
  /// The transports of the loads of one session, or of those without a session.
  private struct Known {
    weak var context: SessionContext?
    var curl: CurlTransport?
    var session: FoundationTransport?
  }

  private let known = Mutex<[ObjectIdentifier: Known]>([:])

  /// Returns the libcurl transport of a context.
  ///
  /// - Parameter settings: Returns the settings on first use. They are always the same for a context and this cache.
  func curlTransport(of context: SessionContext, settings: () -> CurlTransport.Configuration) -> CurlTransport {
    value(of: context, \.curl) { CurlTransport(settings()) }
  }

  /// Returns the transport over a session of this library for a context.
  ///
  /// - Parameter make: Creates it on first use.
  func sessionTransport(of context: SessionContext, make: () -> FoundationTransport) -> FoundationTransport {
    value(of: context, \.session, make: make)
  }

  private func value<Transport: Sendable>(
    of context: SessionContext, _ path: WritableKeyPath<Known, Transport?> & Sendable, make: () -> Transport
  ) -> Transport {
    let id = ObjectIdentifier(context)
    // Release these outside the lock: releasing the last reference to a transport ends its connections.
    var released: [Known] = []
    defer { withExtendedLifetime(released) {} }
    return known.withLock { known in
      if let entry = known[id], entry.context === context, let transport = entry[keyPath: path] { return transport }
      released = known.values.filter { $0.context == nil }
      known = known.filter { $0.value.context != nil }
      let transport = make()
      known[id, default: Known(context: context)][keyPath: path] = transport
      return transport
    }
  }
}
