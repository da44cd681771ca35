import CCurl
import Glibc

/// The functions that libcurl calls on the I/O thread, within the thread's own calls.
///
/// A callback calls libcurl only for information and options of its own transfer. It does not resume tasks, which the
/// I/O thread does after libcurl's call has returned.
enum Callbacks {
  private static func transfer(_ pointer: UnsafeMutableRawPointer?) -> Transfer {
    // The pointer was set with the handle. The pool retains the transfer while libcurl has it.
    Unmanaged<Transfer>.fromOpaque(pointer!).takeUnretainedValue()
  }

  private static func pool(_ pointer: UnsafeMutableRawPointer?) -> ConnectionPool {
    Unmanaged<ConnectionPool>.fromOpaque(pointer!).takeUnretainedValue()
  }

  /// The callback for `CURLOPT_HEADERFUNCTION`.
  static let line: curl_write_callback = { bytes, size, count, user in
    let transfer = transfer(user)
    transfer.pool.noteActivity(of: transfer)
    let goesOn = transfer.receive(line: UnsafeRawBufferPointer(start: bytes, count: size * count))
    return goesOn ? size * count : 0
  }

  /// The callback for `CURLOPT_WRITEFUNCTION`.
  static let content: curl_write_callback = { bytes, size, count, user in
    let transfer = transfer(user)
    transfer.pool.noteActivity(of: transfer)
    return switch transfer.receive(content: UnsafeRawBufferPointer(start: bytes, count: size * count)) {
    case .goOn: size * count
    case .pause: ccurl_pause_writing()
    case .stop: 0
    }
  }

  /// The callback for `CURLOPT_DEBUGFUNCTION`.
  static let note: curl_debug_callback = { _, kind, bytes, count, user in
    if kind == CURLINFO_TEXT { transfer(user).receive(note: UnsafeRawBufferPointer(start: bytes, count: count)) }
    return 0
  }

  /// The callback for `CURLOPT_XFERINFOFUNCTION`, which libcurl calls whenever it may have sent content.
  static let progress: curl_xferinfo_callback = { user, _, _, _, sentByteCount in
    let transfer = transfer(user)
    if transfer.noteSent(byteCount: Int(sentByteCount)) { transfer.pool.noteSending(of: transfer) }
    return 0
  }

  /// The callback for `CURLOPT_OPENSOCKETFUNCTION`.
  ///
  /// Sockets that libcurl opens itself would be inherited by child processes.
  static let openSocket: curl_opensocket_callback = { user, _, address in
    guard let address = address?.pointee else { return -1 }
    let descriptor = socket(
      address.family, address.socktype | CInt(SOCK_CLOEXEC.rawValue), address.protocol)
    let transfer = transfer(user)
    if descriptor >= 0 {
      transfer.pool.opened(descriptor, for: transfer)
    } else if errno == EMFILE || errno == ENFILE {
      transfer.lacksDescriptor = true
    }
    return descriptor
  }

  /// The callback for `CURLOPT_CLOSESOCKETFUNCTION`.
  static let closeSocket: curl_closesocket_callback = { user, descriptor in
    pool(user).closed(descriptor)
    return close(descriptor)
  }

  /// The callback for `CURLOPT_PREREQFUNCTION`.
  static let guardConnection: curl_prereq_callback = { user, peer, local, peerPort, localPort in
    guard let peer, let local else { return CURL_PREREQFUNC_ABORT }
    let ends = ConnectionEnds(
      peer: String(cString: peer), peerPort: peerPort, local: String(cString: local), localPort: localPort)
    let transfer = transfer(user)
    let isUsable = transfer.pool.mayUse(ends, for: transfer)
    return isUsable ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT
  }

  /// The callback for `CURLOPT_SSL_CTX_FUNCTION`, which gets an `SSL_CTX` for each new connection.
  static let prepareTLS: curl_ssl_ctx_callback = { _, context, _ in
    if let context { TLSMessageLimit.apply(to: context) }
    return CURLE_OK
  }

  /// The callback for `CURLMOPT_SOCKETFUNCTION`.
  static let socketInterest: curl_socket_callback = { _, descriptor, wanted, user, _ in
    pool(user).watch(descriptor, for: wanted)
    return 0
  }

  /// The callback for `CURLMOPT_TIMERFUNCTION`.
  static let timer: curl_multi_timer_callback = { _, milliseconds, user in
    pool(user).setTimer(milliseconds: milliseconds)
    return 0
  }
}
